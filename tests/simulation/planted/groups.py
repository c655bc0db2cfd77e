"""Bugs in consumer groups, their offsets, and the shards that both coordinators work on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.broker.coordinators import shard_log
from penstock.broker.coordinators.group_shard import GroupShard
from penstock.broker.coordinators.shard import LogShard, PendingReply
from penstock.broker.coordinators.shard_slot import Phase, ShardSlot
from penstock.broker.coordinators.shards import Shards
from penstock.broker.partitions.partition import Partition
from penstock.groups import commits, heartbeats, machine, reconcile
from penstock.groups import offsets as offsets_module
from penstock.groups.offsets import Before, Offsets
from penstock.groups.replay import Replay
from penstock.model.errors import BrokerError, ErrorCode
from tests.simulation.planted.probe import (
    Probe,
    answering,
    replaced,
    replaced_everywhere,
    unchecked,
)

Planted = AbstractContextManager[Any]


# Shards ------------------------------------------------------------------------------------------


def reload_outlives_its_epoch(probe: Probe) -> Planted:
    """A reload that was planned in one leader epoch reads the shard of the next one back once more (mended finding 1)."""

    def wait(_original: Any, slot: Any, delay_s: float, then: Any) -> None:
        slot._enter(Phase.WAITING)
        slot._loop.call_later(delay_s, _load_again, probe, then.__self__, slot.partition.index)

    return replaced(probe, ShardSlot, "wait", wait)


def _load_again(probe: Probe, shards: Shards[Any, Any], index: int) -> None:
    slot = shards._slots.get(index)
    if slot is None or slot.phase in (Phase.QUEUED, Phase.STOPPED):
        return
    if slot.phase is Phase.WAITING:
        shards._load_again(slot)
    else:
        probe.deviates()
        shards._spawn(_load_twice(shards, slot), "load-again")


async def _load_twice(shards: Shards[Any, Any], slot: Any) -> None:
    replay = shards._new_replay()
    try:
        await shard_log.read_all(
            slot.partition, shards._replicas, replay, is_wanted=lambda: slot.is_open
        )
    except BrokerError:
        return
    if slot.is_open:
        shard = shards._open_shard(replay, slot.partition, lambda _: None)
        slot.phase, slot.shard = Phase.ACTIVE, shard
        shard.begin()


@contextmanager
def shards_change_before_they_look(probe: Probe) -> Iterator[None]:
    """Only the append asks whether enough replicas are in sync, and a refusal loses the shard (mended finding 7)."""

    def check_writable(original: Any, shard: Any) -> None:
        try:
            original(shard)
        except BrokerError:
            partition = shard.partition
            partition._host.refuse_when_unable()
            if partition.failure is not None or not partition.is_leader:
                raise
            probe.deviates()

    def append(original: Any, partition: Any, *rest: Any) -> Any:
        partition.check_in_sync()
        return original(partition, *rest)

    with (
        replaced(probe, LogShard, "check_writable", check_writable),
        replaced(probe, shard_log, "append", append),
    ):
        yield


def shards_outlive_their_leadership(probe: Probe) -> Planted:
    """A coordinator goes on with its memory when another broker leads, or in another epoch."""

    def is_of(original: Any, slot: Any, partition: Any) -> bool:
        probe.deviates(not original(slot, partition))
        return True

    return replaced(probe, ShardSlot, "is_of", is_of)


def shards_read_to_the_high_watermark(probe: Probe) -> Planted:
    """A new coordinator does not read what its predecessor wrote last."""

    def read_all(_original: Any, partition: Any, offset: int, max_bytes: int) -> Any:
        partition.check_leader()
        log, limit = partition.log, partition.high_watermark
        probe.deviates(limit < log.next_offset)
        return partition._read(log, offset, max_bytes, limit, at_least_one=True)

    return replaced(probe, Partition, "read_all", read_all)


# Offsets -----------------------------------------------------------------------------------------


def group_replies_before_the_commit(probe: Probe) -> Planted:
    """An OffsetCommit is acknowledged before the log of the offsets has it."""

    def reply(_original: Any, shard: Any, asked: Any, message: Any) -> None:
        assert isinstance(asked, PendingReply)
        probe.deviates(shard._records or shard._in_flight)
        shard._answer(asked, message)

    return replaced(probe, GroupShard, "_reply", reply)


def offset_fetch_reads_ahead(probe: Probe) -> Planted:
    """OffsetFetch tells of commits that are not replicated yet."""

    def committed(original: Any, offsets: Any, position: Any) -> Before:
        found = Before(offsets.get(*position), position in offsets._unstable)
        probe.deviates(found != original(offsets, position))
        return found

    return replaced(probe, Offsets, "committed", committed)


def unstable_offsets_are_told(probe: Probe) -> Planted:
    """OffsetFetch with require_stable does not wait for the end of a transaction."""

    def committed(original: Any, offsets: Any, position: Any) -> Before:
        found: Before = original(offsets, position)
        probe.deviates(found.was_unstable)
        return found._replace(was_unstable=False)

    return replaced(probe, Offsets, "committed", committed)


def commits_of_former_members_count(probe: Probe) -> Planted:
    """A member commits in a generation, or at an epoch, that is over."""
    return unchecked(probe, commits, "check_commit")


def deleted_offsets_return(probe: Probe) -> Planted:
    """A coordinator that reads its log back skips the deletion of offsets."""

    def apply(original: Any, replay: Any, key: bytes, value: bytes | None) -> None:
        if value is None and key[:2] in (b"\x00\x00", b"\x00\x01"):
            probe.deviates()
        else:
            original(replay, key, value)

    return replaced(probe, Replay, "apply", apply)


def new_topics_inherit_offsets(probe: Probe) -> Planted:
    """An offset counts for whatever topic has the name now (S1)."""

    def belongs(original: Any, topic_id: bytes, current: Any) -> bool:
        found = current is not None
        probe.deviates(found != original(topic_id, current))
        return found

    return replaced_everywhere(probe, offsets_module, "belongs", belongs)


# Membership --------------------------------------------------------------------------------------


def partitions_given_before_they_are_free(probe: Probe) -> Planted:
    """A member gets a partition that another has not given up yet."""

    def advance(original: Any, group: Any, member: Any, *rest: Any) -> bool:
        owners, group.owners = group.owners, {}
        others = {it: who for it, who in owners.items() if who != member.id}
        try:
            changed: bool = original(group, member, *rest)
        finally:
            taken, group.owners = group.owners, owners
        if changed:
            probe.deviates(not others.keys().isdisjoint(taken))
            group.owners = others | taken
        return changed

    return replaced(probe, reconcile, "_advance", advance)


def member_epochs_unchecked(probe: Probe) -> Planted:
    """A member that was fenced goes on as if nothing had happened."""
    return unchecked(probe, heartbeats, "_check_epoch")


def assignments_not_written(probe: Probe) -> Planted:
    """Only the memory of the coordinator knows what members have."""

    def advance(
        original: Any, group: Any, member: Any, owned: Any, _written: Any, now_ms: int
    ) -> Any:
        unwritten: list[Any] = []
        effects = original(group, member, owned, unwritten, now_ms)
        probe.deviates(unwritten)
        return effects

    return replaced(probe, heartbeats, "advance", advance)


def stale_syncs_count(probe: Probe) -> Planted:
    """SyncGroup does not compare the generation: an old leader's assignment counts."""

    def refusal(original: Any, group: Any, event: Any) -> ErrorCode:
        code: ErrorCode = original(group, event)
        if code is ErrorCode.ILLEGAL_GENERATION:
            probe.deviates()
            return ErrorCode.NONE
        return code

    return replaced(probe, machine, "_sync_refusal", refusal)


@contextmanager
def sessions_not_resumed(probe: Probe) -> Iterator[None]:
    """A new coordinator waits for members that are gone: their sessions have no timers."""
    with (
        answering(probe, machine, "_loaded", []),
        answering(probe, machine, "restart_timers", []),
    ):
        yield
