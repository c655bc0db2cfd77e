"""Runs one piece of work against a cluster, on an event loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.cli.arguments import UsageError
from penstock.client.connection import parse_bootstrap
from penstock.client.pool import Pool

CLIENT_ID: Final = "penstock-cli"
T = TypeVar("T")


def with_pool(bootstrap: str, work: Callable[[Pool], Awaitable[T]]) -> T:
    try:
        addresses = parse_bootstrap(bootstrap)
    except ValueError as error:
        raise UsageError(f"--bootstrap: {error}") from None

    async def run() -> T:
        async with Pool(addresses, client_id=CLIENT_ID) as pool:
            return await work(pool)

    return asyncio.run(run())
