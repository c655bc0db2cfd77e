"""Bugs in leaders, followers, fetches and the in-sync replicas."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.broker.partitions import fetcher, leading
from penstock.broker.partitions.fetcher import _Followed
from penstock.broker.partitions.isr import IsrKeeper
from penstock.broker.partitions.leading import LeadingPartition
from penstock.broker.partitions.log import PartitionLog
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.partition import Partition
from penstock.kafka.fetch_sessions import FetchPartition
from penstock.kafka.overtaken import Refusals
from penstock.metadata.rules import isr_changes
from penstock.metadata.rules.isr_changes import UNKNOWN_EPOCH
from penstock.replication.leader import Leadership
from penstock.storage.epochs import Epochs
from penstock.storage.log import Log
from tests.simulation.planted.probe import Probe, answering, left_out, replaced, unchecked

Planted = AbstractContextManager[Any]


# The high watermark ------------------------------------------------------------------------------


def log_end_is_the_high_watermark(probe: Probe) -> Planted:
    """The leader does not wait for its followers."""

    def mark(original: Any, leadership: Any, present: int, own_end: int, **more: Any) -> int:
        right: int = original(leadership, present, own_end, **more)
        probe.deviates(max(present, own_end) != right)
        return max(present, own_end)

    return replaced(probe, Leadership, "high_watermark", mark)


def new_leader_commits_all_it_has(probe: Probe) -> Planted:
    """A new leader takes its log end for the high watermark."""

    def begin(original: Any, partition: Any, log: Any) -> None:
        original(partition, log)
        if partition.leadership is not None and log.next_offset > partition.high_watermark:
            probe.deviates()
            partition._commit_upto(log.next_offset, 1)

    return replaced(probe, PartitionLog, "_begin_epoch", begin)


def consumers_read_past_the_high_watermark(probe: Probe) -> Planted:
    def read(original: Any, partition: Any, log: Any, *rest: Any, **more: Any) -> Any:
        if more.get("isolation") == 0:  # followers and the broker itself do not name one
            offset, max_bytes, limit = rest
            probe.deviates(limit < log.next_offset)
            rest = offset, max_bytes, log.next_offset
        return original(partition, log, *rest, **more)

    return replaced(probe, PartitionLog, "_read", read)


def followers_mark_passes_their_log(probe: Probe) -> Planted:
    """A follower takes the leader's high watermark without looking at the end of its own log."""

    def learn(original: Any, partition: Any, high_watermark: int, log_start: int) -> None:
        original(partition, high_watermark, log_start)
        if high_watermark > partition.high_watermark:
            probe.deviates()
            partition._commit_upto(high_watermark, 1)

    return replaced(probe, Partition, "learn", learn)


def cut_leaves_the_high_watermark(probe: Probe) -> Planted:
    def was_cut(original: Any, partition: Any, offset: int) -> None:
        before = partition.high_watermark
        original(partition, offset)
        probe.deviates(partition.high_watermark < before)
        partition.high_watermark = before

    return replaced(probe, Partition, "_was_cut", was_cut)


def saved_high_watermark_is_trusted(probe: Probe) -> Planted:
    """The mark that was written down counts up to the log end, also after records were lost."""

    def committed(original: Any, partition: Any, log: Any) -> int:
        saved = partition._host.saved_high_watermark(partition)
        mark: int = max(min(saved, log.next_offset), log.start_offset)
        probe.deviates(mark != original(partition, log))
        return mark

    return replaced(probe, PartitionLog, "_surely_committed", committed)


def unsynced_records_count(probe: Probe) -> Planted:
    """With flush.messages=1 a record counts before it is on the disk."""

    def own_end(original: Any, partition: Any, log: Any) -> int:
        probe.deviates(original(partition, log) != log.next_offset)
        end: int = log.next_offset
        return end

    return replaced(probe, PartitionLog, "_own_end", own_end)


# Who is in sync ----------------------------------------------------------------------------------


def isr_expands_without_the_high_watermark(probe: Probe) -> Planted:
    """A follower that lacks committed records joins the ISR."""

    def expanded(original: Any, leadership: Any, broker_id: int, mark: int) -> Any:
        right = original(leadership, broker_id, mark)
        start, leadership.start_offset = leadership.start_offset, 0
        found = original(leadership, broker_id, 0)
        leadership.start_offset = start
        probe.deviates(found != right)
        return found

    return replaced(probe, Leadership, "expanded", expanded)


def isr_expands_before_the_epoch_start(probe: Probe) -> Planted:
    """A follower joins with all below the high watermark, which a new leader does not know yet."""

    def expanded(original: Any, leadership: Any, broker_id: int, mark: int) -> Any:
        right = original(leadership, broker_id, mark)
        start, leadership.start_offset = leadership.start_offset, 0
        found = original(leadership, broker_id, mark)
        leadership.start_offset = start
        probe.deviates(found != right)
        return found

    return replaced(probe, Leadership, "expanded", expanded)


def min_isr_unchecked(probe: Probe) -> Planted:
    """The leader appends with too few replicas in sync."""
    return unchecked(probe, LeadingPartition, "check_in_sync")


def older_isr_counts(probe: Probe) -> Planted:
    """News of the ISR that arrives late overwrites what is known."""

    def committed(original: Any, leadership: Any, isr: Any, replicas: Any) -> Any:
        if isr.partition_epoch < leadership.isr.partition_epoch:
            probe.deviates(isr.members != leadership.isr.members)
            leadership.isr, leadership.proposed = isr, None
            return True
        return original(leadership, isr, replicas)

    return replaced(probe, Leadership, "committed", committed)


def unanswered_isr_change_is_dropped(probe: Probe) -> Planted:
    """The leader takes a change whose answer was lost for one that never happens (R6)."""

    async def send(original: Any, keeper: Any, batch: Any) -> Any:
        is_answered = await original(keeper, batch)
        if not is_answered:
            for partition in batch:
                probe.deviates()
                partition.isr_refused()
        return is_answered

    return replaced(probe, IsrKeeper, "_send", send)


def isr_member_epochs_unchecked(probe: Probe) -> Planted:
    """KIP-903: the controller does not compare the epochs of the members with those of their sessions."""

    def ineligible(original: Any, asked: Any, partition: Any, member: Any) -> str:
        believed: str = original(asked, partition, member._replace(broker_epoch=UNKNOWN_EPOCH))
        probe.deviates(believed != original(asked, partition, member))
        return believed

    return replaced(probe, isr_changes._Asked, "_ineligible", ineligible)


def isr_sessions_not_compared(probe: Probe) -> Planted:
    """KIP-903: an addition is written, also when the session of the follower has ended meanwhile."""
    return answering(probe, isr_changes._Asked, "_sessions", [])


def follower_sessions_not_noted(probe: Probe) -> Planted:
    """The leader goes on to count on what a follower had before it restarted."""

    def began(_original: Any, leadership: Any, broker_id: int, broker_epoch: int) -> None:
        follower = leadership.follower(broker_id)
        probe.deviates(follower is not None and follower.broker_epoch != broker_epoch)

    return replaced(probe, Leadership, "began_session", began)


@contextmanager
def followers_survive_an_epoch(probe: Probe) -> Iterator[None]:
    """A leader that is elected again counts on what its followers had when it led before."""
    known: dict[Any, dict[int, Any]] = {}

    def lead(original: Any, partition: Any, broker_id: int, state: Any) -> None:
        before = partition.leadership
        original(partition, broker_id, state)
        leadership = partition.leadership
        if leadership is None:
            return
        if leadership is not before:
            found = {it: known.get(partition, {}).get(it) for it in leadership.replicas}
            leadership._followers.update({it: was for it, was in found.items() if was is not None})
            probe.deviates(leadership._followers)
        known[partition] = leadership._followers

    with replaced(probe, LeadingPartition, "lead", lead):
        yield


# What followers take, and what they drop ---------------------------------------------------------


def divergence_unchecked(probe: Probe) -> Planted:
    """The leader does not compare the follower's last epoch with its own log."""
    return answering(probe, leading, "diverges", False)


def answers_of_another_time_count(probe: Probe) -> Planted:
    """F2: a follower takes an answer, whatever its log and its leader epoch are by now."""
    return answering(probe, fetcher, "is_current", True)


def answers_to_an_earlier_request_count(probe: Probe) -> Planted:
    def is_told_by(original: Any, followed: Any, number: int) -> bool:
        is_told: bool = followed._asked is not None
        probe.deviates(is_told != original(followed, number))
        return is_told

    return replaced(probe, _Followed, "is_told_by", is_told_by)


@contextmanager
def any_answer_counts(probe: Probe) -> Iterator[None]:
    """Neither the position nor the number of the request is compared: each check hides the other's lack."""
    with answers_of_another_time_count(probe), answers_to_an_earlier_request_count(probe):
        yield


def fetch_epochs_unchecked(probe: Probe) -> Planted:
    """KIP-320: the leader answers a fetch that was made for another leader epoch."""
    return unchecked(probe, PartitionLog, "check_epoch")


def epoch_start_not_noted(probe: Probe) -> Planted:
    """R1: a leader notes its epoch only with its first batch."""

    def begin(_original: Any, log: Any, epoch: int) -> None:
        probe.deviates(epoch != log.epochs.latest)

    return replaced(probe, Log, "begin_epoch", begin)


def epochs_survive_a_cut(probe: Probe) -> Planted:
    def truncate_end(_original: Any, epochs: Any, next_offset: int) -> None:
        epochs.log_start = min(epochs.log_start, next_offset)
        probe.deviates(epochs._starts and epochs._starts[-1] >= next_offset)

    return replaced(probe, Epochs, "truncate_end", truncate_end)


def fetch_session_keeps_the_first_epoch(probe: Probe) -> Planted:
    """A fetch session moves the offset of a partition, and leaves the last fetched epoch as it was."""

    def ask_again(original: Any, known: Any, wanted: Any) -> None:
        epoch = known.last_fetched_epoch
        original(known, wanted)
        probe.deviates(epoch != known.last_fetched_epoch)
        known.last_fetched_epoch = epoch

    return replaced(probe, FetchPartition, "ask_again", ask_again)


def rejected_batches_forgotten(probe: Probe) -> Planted:
    """A batch of an idempotent producer enters although the one before it was rejected a moment ago."""
    return answering(probe, Refusals, "overtaken_by", None)


def restarts_unnoticed_by_partitions(probe: Probe) -> Planted:
    """No partition hears that another broker has begun a new session."""
    return left_out(probe, MetadataApplier, "_note_session")
