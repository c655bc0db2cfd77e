"""A lease is kept from a thread, as long as the event loop lives. Time is real, and short."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from penstock.broker.membership.lease_renewer import LeaseRenewer
from penstock.metadata.store import LeaseId, MetadataStore, StoreError

TTL_MS = 160
LEASE = LeaseId(7)


class Leases:
    """What the keeper uses of a store."""

    def __init__(self) -> None:
        self.renewals = 0
        self.left_ms = TTL_MS
        self.error: StoreError | None = None
        self.renewed = threading.Semaphore(0)

    def renew(self, lease: LeaseId) -> int:
        assert lease == LEASE
        self.renewals += 1
        self.renewed.release()
        if self.error is not None:
            raise self.error
        return self.left_ms


class LeasesOfTheLoop:
    """A store that only the loop may use."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def keep_alive(self, lease: LeaseId) -> int:
        assert lease == LEASE
        self.asked.set()
        return 0


class Watched:
    """A keeper, and what it said."""

    def __init__(self, store: object) -> None:
        self.gone = asyncio.Event()
        self.stalled = asyncio.Event()
        self.connections: list[bool] = []
        self.lease_renewer = LeaseRenewer(
            cast("MetadataStore", store),
            TTL_MS,
            on_gone=lambda _: self.gone.set(),
            on_stall=self.stalled.set,
            on_connection=self.connections.append,
        )


def run(store: Callable[[], object], scenario: Callable[[Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        watched = Watched(store())
        watched.lease_renewer.hold(LEASE)
        try:
            await scenario(watched)
        finally:
            await watched.lease_renewer.stop()

    asyncio.run(main())
    assert "penstock-session" not in {thread.name for thread in threading.enumerate()}


async def renewals(leases: Leases, count: int) -> None:
    for _ in range(count):
        await asyncio.to_thread(leases.renewed.acquire)


def test_a_lease_is_kept_again_and_again() -> None:
    leases = Leases()

    async def scenario(watched: Watched) -> None:
        await renewals(leases, 6)
        while not watched.lease_renewer.is_connected:  # nothing may have run here for a while
            await renewals(leases, 1)
        assert not watched.gone.is_set()

    run(lambda: leases, scenario)


def test_a_loop_that_hangs_lets_the_lease_go_and_learns_of_it_when_it_comes_back() -> None:
    leases = Leases()

    async def scenario(watched: Watched) -> None:
        await renewals(leases, 1)
        before = leases.renewals
        time.sleep(TTL_MS * 3 / 1000)  # noqa: ASYNC251  # the hang itself
        assert leases.renewals - before <= 3, "only while the last tick was young"
        await watched.stalled.wait()
        await renewals(leases, leases.renewals + 1)  # those of before, and two more

    run(lambda: leases, scenario)


def test_a_lease_that_is_gone_is_told_in_the_loop() -> None:
    leases = Leases()
    leases.left_ms = 0

    async def scenario(watched: Watched) -> None:
        await watched.gone.wait()

    run(lambda: leases, scenario)


def test_a_store_that_cannot_be_reached_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    leases.error = StoreError("unreachable")

    async def scenario(watched: Watched) -> None:
        while watched.connections != [False]:
            await renewals(leases, 1)
        assert not watched.lease_renewer.is_connected
        assert not watched.gone.is_set()
        leases.error = None
        while watched.connections[:2] != [False, True]:
            await renewals(leases, 1)

    run(lambda: leases, scenario)
    assert "session-unrefreshed error=unreachable" in caplog.text


def test_a_store_that_only_the_loop_may_use_is_asked_there() -> None:
    async def scenario(watched: Watched) -> None:
        await watched.gone.wait()

    run(LeasesOfTheLoop, scenario)
