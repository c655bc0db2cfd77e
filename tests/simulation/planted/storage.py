"""Bugs in logs: recovery, cuts, flushes, retention, DeleteRecords, compaction, full and failing disks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.broker.maintenance.housekeeping import Housekeeping
from penstock.broker.partitions.flusher import Flusher
from penstock.broker.partitions.partition import Partition
from penstock.model.errors import OutOfResources, StorageFault
from penstock.records import compaction as records_compaction
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.storage import compaction, directory, recovery, retention, state
from penstock.storage.files import SegmentFile, refuse
from penstock.storage.flush import FlushTicket
from penstock.storage.local_log import LocalLog
from penstock.storage.log import Log
from penstock.storage.segment import Segment
from tests.simulation.planted.probe import Probe, answering, left_out, replaced

Planted = AbstractContextManager[Any]
_EVERYTHING = 1 << 62  # an offset that no log reaches


# After a crash -----------------------------------------------------------------------------------


class _AnyChecksum:
    """Never different from another."""

    def __init__(self, value: int, probe: Probe) -> None:
        self._value = value
        self._probe = probe

    __hash__ = None  # type: ignore[assignment] # nobody keeps it

    def __eq__(self, other: object) -> bool:
        self._probe.deviates(self._value != other)
        return True


def checksums_ignored_at_recovery(probe: Probe) -> Planted:
    """A torn batch whose header is there counts as whole."""

    def checksum(original: Any, data: Any) -> _AnyChecksum:
        return _AnyChecksum(original(data), probe)

    return replaced(probe, recovery, "crc32c", checksum)


def deleted_records_return_at_a_start(probe: Probe) -> Planted:
    """The log start that was written down is not looked at: the log begins with its first segment."""

    def open_log(original: Any, *arguments: Any, **more: Any) -> Any:
        log = original(*arguments, **more)
        if log.segments and log.start_offset > log.segments[0].base_offset:
            probe.deviates()
            log.start_offset = log.segments[0].base_offset
        return log

    return replaced(probe, directory, "open_log", open_log)


def snapshot_of_another_log_counts(probe: Probe) -> Planted:
    """The snapshot of producers is used, whether the batch before it is still the same or not."""

    def is_of(original: Any, segments: Any, section: Any) -> bool:
        found: bool = section.offset >= segments[0].base_offset
        probe.deviates(found != original(segments, section))
        return found

    return replaced(probe, state, "_is_of", is_of)


def recovery_point_is_the_log_end(probe: Probe) -> Planted:
    """What is written while a sync runs counts as synced by it."""

    def flush_end(original: Any, log: Any, ticket: Any) -> None:
        original(log, ticket)
        if ticket.is_complete and ticket.truncations == log.truncations:
            probe.deviates(log.recovery_point < log.next_offset)
            log.recovery_point = log.next_offset

    return replaced(probe, Log, "flush_end", flush_end)


# Cuts --------------------------------------------------------------------------------------------


def producers_survive_a_cut(probe: Probe) -> Planted:
    """What producers did in the batches that were cut off is not forgotten."""

    def was_truncated(original: Any, log: Any, local: Any) -> None:
        before = log.producers
        original(log, local)
        probe.deviates(len(before))
        log._state.producers = before

    return replaced(probe, Log, "_was_truncated", was_truncated)


def cut_not_announced(probe: Probe) -> Planted:
    """`truncated_to` is not written down before a cut."""
    return left_out(probe, LocalLog, "_announce")


def recovery_point_survives_a_cut(probe: Probe) -> Planted:
    def truncate_to(original: Any, log: Any, offset: int) -> None:
        before = log.recovery_point
        original(log, offset)
        probe.deviates(log.recovery_point < before)
        log.recovery_point = before

    return replaced(probe, Log, "truncate_to", truncate_to)


def sync_counts_for_a_cut_log(probe: Probe) -> Planted:
    """A sync that began before a cut makes the offsets durable that were written after it."""

    def count(original: Any, flusher: Any, partition: Any, log: Any, ticket: Any) -> None:
        if not partition.has(log) or ticket.truncations != log.truncations:
            probe.deviates()
            partition.synced(min(ticket.next_offset, partition.log.next_offset), ticket.size_bytes)
        original(flusher, partition, log, ticket)

    return replaced(probe, Flusher, "_count", count)


def reads_go_on_where_a_cut_was(probe: Probe) -> Planted:
    """A segment remembers where the last read ended, also when it was cut since."""

    def resume_before(original: Any, segment: Any, offset: int) -> int:
        cursor = segment._cursor
        start: int = original(segment, offset)
        probe.deviates(cursor != segment._cursor)
        segment._cursor = cursor
        return start

    return replaced(probe, Segment, "resume_before", resume_before)


# The disk ----------------------------------------------------------------------------------------


def syncs_do_nothing(probe: Probe) -> Planted:
    def sync(_original: Any, ticket: Any) -> None:
        probe.deviates()
        ticket._handles, ticket._paths, ticket._directories = [], [], []

    return replaced(probe, FlushTicket, "sync", sync)


def names_not_synced(probe: Probe) -> Planted:
    """A flush syncs files and not the directories that name them."""
    return left_out(probe, FlushTicket, "_sync_directory")


def failed_sync_is_tried_again(probe: Probe) -> Planted:
    """The second sync succeeds over pages that the kernel has dropped."""

    def sync(original: Any, ticket: Any) -> None:
        try:
            original(ticket)
        except OutOfResources:
            raise
        except StorageFault as fault:
            probe.deviates()
            raise OutOfResources(str(fault)) from fault

    return replaced(probe, FlushTicket, "sync", sync)


def lack_of_descriptors_is_final(probe: Probe) -> Planted:
    """A sync for which there was no descriptor takes the data directory offline (mended finding 5)."""

    def sync(original: Any, ticket: Any) -> None:
        try:
            original(ticket)
        except OutOfResources as shortage:
            probe.deviates()
            raise StorageFault(str(shortage)) from shortage

    return replaced(probe, FlushTicket, "sync", sync)


def failed_write_leaves_its_bytes(probe: Probe) -> Planted:
    """What a short write has left in the file is not cut off."""

    def undo(_original: Any, file: Any, _fd: int, error: OSError) -> None:
        probe.deviates()
        refuse(error, f"{file.path}: write at {file.size} failed")

    return replaced(probe, SegmentFile, "_undo", undo)


def hung_syncs_unnoticed(probe: Probe) -> Planted:
    """L4: a leader whose disk hangs goes on to lead."""

    async def watch(_original: Any, housekeeping: Any) -> None:
        limit_s = housekeeping._cluster.config.penstock_disk_hang_max_ms / 1000
        probe.deviates(housekeeping._replicas.directory.syncs.hung(limit_s))

    return replaced(probe, Housekeeping, "_watch_syncs", watch)


@contextmanager
def closed_logs_take_writes(probe: Probe) -> Iterator[None]:
    """A stop does not keep requests that are under way from writing to logs (mended finding 8)."""
    with (
        left_out(probe, Log, "stop_writes"),
        left_out(probe, directory.DataDirectory, "stop_writes"),
    ):
        yield


# What goes ---------------------------------------------------------------------------------------


def retention_takes_uncommitted_records(probe: Probe) -> Planted:
    def count_expired(original: Any, *arguments: Any, **more: Any) -> int:
        right = original(*arguments, **more)
        count: int = original(*arguments, **(more | {"upto_offset": _EVERYTHING}))
        probe.deviates(count != right)
        return count

    return replaced(probe, retention, "count_expired", count_expired)


def followers_apply_retention(probe: Probe) -> Planted:
    """Each replica deletes by its own clock."""

    def retain(original: Any, housekeeping: Any, partition: Any) -> None:
        if partition.is_leader:
            original(housekeeping, partition)
            return
        now_ms = housekeeping._replicas.expiry_clock.now_ms()
        freed = partition.log.apply_retention(now_ms, upto_offset=partition.last_stable_offset)
        probe.deviates(freed)

    return replaced(probe, Housekeeping, "_retain", retain)


def deletion_passes_the_high_watermark(probe: Probe) -> Planted:
    """DeleteRecords takes -1 for the log end."""

    def delete(original: Any, partition: Any, offset: int) -> int:
        if offset == -1:
            probe.deviates(partition.log.next_offset > partition.high_watermark)
            partition._guarded(
                lambda: partition.log.delete_records_before(partition.log.next_offset)
            )
            partition.wake()
            start: int = partition.log.start_offset
            return start
        done: int = original(partition, offset)
        return done

    return replaced(probe, Partition, "delete_records_before", delete)


def log_start_not_followed(probe: Probe) -> Planted:
    """Followers keep what was deleted at the leader."""

    def learn(original: Any, partition: Any, high_watermark: int, log_start: int) -> None:
        probe.deviates(log_start > partition.log.start_offset)
        original(partition, high_watermark, 0)

    return replaced(probe, Partition, "learn", learn)


# Compaction --------------------------------------------------------------------------------------


def compaction_of_undecided_records(probe: Probe) -> Planted:
    """The cleaner goes past the last stable offset."""

    def assess(original: Any, log: Any, stable_offset: int, now_ms: int) -> Any:
        right = original(log, stable_offset, now_ms)
        found = original(log, _EVERYTHING, now_ms)
        probe.deviates(found != right)
        return found

    return replaced(probe, compaction, "assess", assess)


def aborted_records_supersede(probe: Probe) -> Planted:
    """The cleaner removes a committed record because of a later one that was aborted."""

    def keys(original: Any, header: Any, batch: Any, transactions: Any, rules: Any) -> Any:
        right = original(header, batch, transactions, rules)
        if not header.is_transactional:
            return right
        plain = header._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)
        found = original(plain, batch, transactions, rules)
        probe.deviates(found != right)
        return found

    return replaced(probe, records_compaction, "_keys", keys)


def tombstones_removed_at_once(probe: Probe) -> Planted:
    """delete.retention.ms is not waited for: a reader that is behind never hears of the deletion."""

    def survives(original: Any, cleaning: Any, header: Any, data: bytes, span: Any) -> bool:
        stays: bool = original(cleaning, header, data, span)
        if stays and span.value_end < 0 and header.last_offset < cleaning.latest.upto_offset:
            probe.deviates()
            return False
        return stays

    return replaced(probe, records_compaction._Cleaning, "_survives", survives)


def compaction_hides_epoch_ends(probe: Probe) -> Planted:
    """Nothing marks where a leader epoch ended whose last records were removed."""

    def job_for(original: Any, *arguments: Any) -> Any:
        job = original(*arguments)
        probe.deviates(job.epoch_ends)
        return job._replace(epoch_ends=())

    return replaced(probe, compaction, "job_for", job_for)


def compaction_drops_producers(probe: Probe) -> Planted:
    """The last batch of a producer goes, and with it its sequence."""
    return answering(probe, records_compaction._Cleaning, "_is_tail", False)


def compaction_after_a_cut(probe: Probe) -> Planted:
    """Compacted segments take the place of old ones that were cut meanwhile."""
    return answering(probe, compaction.Round, "is_current", True)
