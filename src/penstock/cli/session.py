"""How commands reach a cluster: our own client on an event loop of its own, or librdkafka."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

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


def librdkafka(kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    """A Producer or Consumer; a setting that it does not take is wrong usage."""
    from confluent_kafka import KafkaException

    try:
        return kind(settings)
    except KafkaException as error:
        raise UsageError(f"librdkafka: {reason(error.args[0])}") from None
    except TypeError as error:
        raise UsageError(f"librdkafka: {error}") from None


def reason(error: Any) -> str:
    """What librdkafka says, without saying who said it."""
    return str(error.str()).removeprefix("Broker: ")
