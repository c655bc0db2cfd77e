"""Confirms that this broker still leads a partition while it cannot reach the metadata store (B5).

While every other in-sync replica fetches in this leader's epoch, none of them leads. One poller per
partition counts rounds: a round ends when each of those replicas has fetched since the round began.
A request is confirmed once `_ROUNDS` rounds have ended that all began after the request arrived.
Requests share the rounds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from penstock.broker.partitions.fetcher import FETCHES_IN_FLIGHT
from penstock.broker.partitions.partition import Partition
from penstock.kafka.fetch_sessions import FetchSession
from penstock.model.clock import Clock
from penstock.model.errors import NotLeader
from penstock.replication.leader import NEVER_MS, Leadership

# When a request arrives, so many fetches of a follower may be on their way, and each may have been
# sent before the follower began to lead. The follower sends the next one after the response to one of
# them, which this broker sends later than the request arrived.
_ROUNDS: Final = FETCHES_IN_FLIGHT + 1
_CONFIRM_MS: Final = 5_000  # several times the longest wait of a follower's fetch
_LOOK_S: Final = 0.02


class _Waiter(NamedTuple):
    """A request that waits for one partition."""

    ended_rounds: int  # confirmed once so many have ended
    deadline_ms: int
    confirmed: "asyncio.Future[None]"


class _Rounds:
    """The rounds of one partition in one leader epoch, counted while requests wait for them."""

    def __init__(self, partition: Partition, leadership: Leadership, clock: Clock) -> None:
        self._partition = partition
        self._leadership = leadership
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()  # of the present round
        self._ended = 0
        self._waiters: deque[_Waiter] = deque()  # ordered by both of their numbers

    def join(self) -> "asyncio.Future[None]":
        """The present round counts only if it begins now.

        A round counts only fetches after its first millisecond, so also after this request.
        """
        now_ms = self._clock.monotonic_ms()
        earlier = 0 if self._begun_ms == now_ms else 1
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(
            _Waiter(self._ended + earlier + _ROUNDS, now_ms + _CONFIRM_MS, confirmed)
        )
        return confirmed

    def poll(self) -> bool:
        """Complete the requests that need not wait longer. Return whether others still wait."""
        obstacle = self._obstacle()
        if obstacle is not None:
            self.reject_all(obstacle)
            return False
        now_ms = self._clock.monotonic_ms()
        while self._waiters and self._has_ended():
            self._ended += 1
            self._begun_ms = now_ms
            self._confirm()
        self._expire(now_ms)
        return bool(self._waiters)

    def _obstacle(self) -> NotLeader | None:
        partition = self._partition
        if partition.leadership is not self._leadership:
            return NotLeader(f"{partition} is not led here any more")
        if not partition.has_enough_in_sync:  # replicas outside the ISR may be elected (KIP-966)
            return NotLeader(f"{partition}: fewer than min.insync.replicas are in sync")
        return None

    def _has_ended(self) -> bool:
        return all(
            last_fetch_ms(self._partition, broker_id) > self._begun_ms
            for broker_id in self._leadership.maximal
            if broker_id != self._leadership.broker_id
        )

    def _confirm(self) -> None:
        while self._waiters and self._waiters[0].ended_rounds <= self._ended:
            confirmed = self._waiters.popleft().confirmed
            if not confirmed.done():  # else its request is gone
                confirmed.set_result(None)

    def _expire(self, now_ms: int) -> None:
        partition = self._partition
        while self._waiters:
            waiter = self._waiters[0]
            if now_ms <= waiter.deadline_ms and not waiter.confirmed.done():
                return
            self._waiters.popleft()
            _reject(
                waiter, NotLeader(f"{partition}: not all in-sync replicas fetch from this leader")
            )

    def reject_all(self, error: NotLeader) -> None:
        while self._waiters:
            _reject(self._waiters.popleft(), error)


def _reject(waiter: _Waiter, error: NotLeader) -> None:
    if not waiter.confirmed.done():
        waiter.confirmed.set_exception(error)
        waiter.confirmed.exception()  # its request may be gone: no "never retrieved" in the log


class LeaderConfirmations:
    """All partitions that are being confirmed. The event loop is its only caller."""

    def __init__(
        self, clock: Clock, spawn: Callable[[Coroutine[Any, Any, None], str], object]
    ) -> None:
        self._clock = clock
        self._spawn = spawn
        self._running: dict[Leadership, _Rounds] = {}

    def confirm(self, partition: Partition) -> "asyncio.Future[None]":
        """Return a future that is done when no other replica led at the time of this call.

        It fails with NotLeader after 5 s, or as soon as this broker does not lead the partition.
        """
        leadership = partition.leadership
        if leadership is None:
            raise NotLeader(f"{partition} is not led here")
        rounds = self._running.get(leadership)
        if rounds is None:
            rounds = _Rounds(partition, leadership, self._clock)
            self._spawn(self._run(leadership, rounds), "confirm-leader")
            self._running[leadership] = rounds
        return rounds.join()

    async def _run(self, leadership: Leadership, rounds: _Rounds) -> None:
        try:
            while rounds.poll():  # noqa: ASYNC110 - one poller per partition; a fetch stays cheap
                await asyncio.sleep(_LOOK_S)
        finally:
            del self._running[leadership]
            rounds.reject_all(NotLeader("the leader could not be confirmed"))


def last_fetch_ms(partition: Partition, broker_id: int) -> int:
    """When the follower last fetched the partition in this leader's epoch.

    The fetch session knows it for an idle partition, which not every fetch looks at.
    """
    assert partition.leadership is not None
    follower = partition.leadership.follower(broker_id)
    if follower is None:
        return NEVER_MS
    sessions = [
        watcher.followed_ms(partition)
        for watcher in partition.replica_watchers or ()
        if isinstance(watcher, FetchSession) and watcher.replica_id == broker_id
    ]
    return max(follower.fetched_ms, *sessions, NEVER_MS)
