"""Whether a leader that does not reach the metadata store may go on alone (B5): others may lead in its place by now.

Not while all who are in sync fetch from it as of its own epoch: without one of them nobody else can be elected.
What every in-sync replica must have (acks=all) needs no such rule.
"""

import asyncio
from typing import Final

from penstock.broker.partition import Partition
from penstock.kafka.context import Services
from penstock.kafka.fetch_sessions import FetchSession
from penstock.model.errors import NotLeader
from penstock.replication.leader import NEVER_MS

_SESSIONS: Final = 2  # of brokers: in which all must have fetched
_ROUNDS: Final = 2  # of fetches that confirm a leader
_CONFIRM_MS: Final = 5_000  # several times the longest wait of a follower's fetch
_LOOK_S: Final = 0.02


def check_contact(partition: Partition, services: Services) -> None:
    """Raises NotLeader for what would be acknowledged by this leader alone."""
    leadership = partition.leadership
    if leadership is None:
        return
    ttl_ms = services.cluster.config.broker_session_timeout_ms
    since_ms = services.clock.monotonic_ms() - _SESSIONS * ttl_ms
    others = [member for member in leadership.isr.members if member != leadership.broker_id]
    if leadership.is_doubted and others:
        raise NotLeader(f"{partition} has a later leader epoch, and its state cannot be read now")
    for broker_id in others:
        if _last_fetch_ms(partition, broker_id) < since_ms:
            raise NotLeader(
                f"{partition}: neither the metadata store nor broker {broker_id} is in reach;"
                " another broker may lead"
            )


async def confirm_leader(partition: Partition, services: Services) -> None:
    """Return when no other replica led at the time of this call. Raise NotLeader if that does not show.

    Every other in-sync replica must fetch twice in this leader's epoch. The first fetch may have been sent before its
    sender began to lead; the second is sent after the response to the first.
    """
    leadership, clock = partition.leadership, services.clock
    if leadership is None:
        return
    ends_ms = clock.monotonic_ms() + _CONFIRM_MS
    for _ in range(_ROUNDS):
        begun_ms = clock.monotonic_ms()
        while True:
            if partition.leadership is not leadership:
                raise NotLeader(f"{partition} is not led here any more")
            if (
                not partition.has_enough_in_sync
            ):  # eligible replicas outside the ISR count (KIP-966)
                raise NotLeader(f"{partition}: fewer than min.insync.replicas are in sync")
            others = [it for it in leadership.maximal if it != leadership.broker_id]
            if all(_last_fetch_ms(partition, it) > begun_ms for it in others):
                break
            if clock.monotonic_ms() > ends_ms:
                raise NotLeader(f"{partition}: not all who are in sync follow; another may lead")
            await asyncio.sleep(_LOOK_S)


def _last_fetch_ms(partition: Partition, broker_id: int) -> int:
    """Of an idle partition the fetch session knows: it is not looked at each time."""
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
