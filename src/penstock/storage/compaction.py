"""What to compact and when: the log with the largest share of dirty bytes, never its active segment.

A `Round` is one compaction of one log. The event loop decides and swaps, threads wait for the worker.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.records.compaction import AbortedRange
from penstock.storage import checksummed_json, swap
from penstock.storage.cleaner import Job, Outcome, Source
from penstock.storage.epochs import NO_EPOCH
from penstock.storage.files import Disk, read_small, write_atomically
from penstock.storage.limits import COMPACT
from penstock.storage.log import Log
from penstock.storage.segment import Segment
from penstock.storage.worker import Worker

CLEANED_UPTO_FILE: Final = "cleaned-upto"
POLICY: Final = COMPACT


class Allowance(NamedTuple):
    """What a broker grants to a round."""

    map_bytes: int  # log.cleaner.dedupe.buffer.size
    io_bytes_per_second: float  # log.cleaner.io.max.bytes.per.second


class Candidate(NamedTuple):
    """A log with something to compact, and how much of it."""

    log: Log
    first_dirty_offset: int
    upto_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # max.compaction.lag.ms has passed

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def choose(logs: Iterable[tuple[Log, int]], now_ms: int) -> Candidate | None:
    """The dirtiest of the logs that are due. Each comes with its last stable offset."""
    found = (assess(log, stable_offset, now_ms) for log, stable_offset in logs)
    due = [candidate for candidate in found if candidate is not None and candidate.is_due]
    return max(due, key=lambda candidate: candidate.dirty_ratio, default=None)


def assess(log: Log, stable_offset: int, now_ms: int) -> Candidate | None:
    """None if there is nothing to compact. Below `stable_offset` all is replicated and decided."""
    config = log.config
    if POLICY not in config.cleanup_policy or len(log.segments) < 2:
        return None
    *closed, _ = log.segments
    first_dirty_offset = first_dirty(log)
    clean = [segment for segment in closed if segment.next_offset <= first_dirty_offset]
    dirty: list[Segment] = []
    for segment in closed[len(clean) :]:
        too_new = segment.next_offset > stable_offset
        if too_new or _is_protected(segment, now_ms, config.min_compaction_lag_ms):
            break
        dirty.append(segment)
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    return Candidate(
        log,
        first_dirty_offset,
        dirty[-1].next_offset,
        sum(segment.size_bytes for segment in clean),
        dirty_bytes,
        any(_is_overdue(segment, now_ms, config.max_compaction_lag_ms) for segment in dirty),
    )


def _is_protected(segment: Segment, now_ms: int, min_lag_ms: int) -> bool:
    return min_lag_ms > 0 and segment.newest()[0] > now_ms - min_lag_ms


def _is_overdue(segment: Segment, now_ms: int, max_lag_ms: int) -> bool:
    if max_lag_ms >= now_ms:
        return False
    first = segment.first_header()
    return first is not None and 0 < first.max_timestamp_ms < now_ms - max_lag_ms


def first_dirty(log: Log) -> int:
    """Below it, earlier rounds have left no key twice.

    What they wrote down counts only while the log still has, at that place, the leader epoch it had:
    otherwise it was truncated and went on with other records.
    """
    data = read_small(f"{log.path}/{CLEANED_UPTO_FILE}")
    if data is None:
        return log.start_offset
    try:
        content = checksummed_json.decode(CLEANED_UPTO_FILE, data)
        offset, epoch = int(content["offset"]), int(content["epoch"])
    except (checksummed_json.Damaged, KeyError, TypeError, ValueError):
        return log.start_offset
    known = log.start_offset < offset <= log.next_offset
    return offset if known and log.epochs.epoch_at(offset - 1) == epoch else log.start_offset


class Round:
    """One compaction of one log.

    In this order: `clean` (thread), `is_current` (loop), `prepare` (thread), `install` (loop),
    `finish` (thread). A round that stops before `install` has changed nothing; call `abandon`.
    """

    __slots__ = ("_epoch", "_truncations", "_worker", "job", "log", "outcome")

    def __init__(
        self, candidate: Candidate, allowance: Allowance, worker: Worker, now_ms: int
    ) -> None:
        self._worker = worker
        self.log = candidate.log
        self._truncations = candidate.log.truncations
        self.job = job_for(candidate, allowance, now_ms)
        self.outcome: Outcome | None = None
        self._epoch = NO_EPOCH

    def clean(self) -> Outcome:
        """Waits for the worker to write the new segments. Raises WorkerFailed."""
        swap.discard(self.job.directory, Disk())
        self.outcome = self._worker.clean(self.job)
        return self.outcome

    def is_current(self) -> bool:
        """Whether the log still has every segment that was read, as it was.

        A truncation, wherever it is, has removed the files of a round that was under way.
        """
        if self.log.truncations != self._truncations:
            return False
        found = {source.base_offset: source for source in map(source_of, self.log.segments)}
        return all(found.get(source.base_offset) == source for source in self.job.sources)

    def prepare(self) -> None:
        """Waits for the worker to make the swaps certain. Raises WorkerFailed."""
        assert self.outcome is not None
        interval_bytes = self.log.config.index_interval_bytes
        if self.outcome.swaps:
            self._worker.prepare(self.job.directory, self.outcome.swaps, interval_bytes)

    def install(self) -> bool:
        """Put the new segments in place; False if the log has changed since, and was left as it is."""
        assert self.outcome is not None
        if not self.is_current():
            self.abandon()
            return False
        for change in self.outcome.swaps:
            replaced = self.log.replace_segments(change)
            assert replaced, "nothing has changed since `is_current`"
        self._epoch = self.log.epochs.epoch_at(self.outcome.clean_upto_offset - 1)
        return True

    def finish(self) -> None:
        """Write down how far the log is clean."""
        assert self.outcome is not None
        content = {"offset": self.outcome.clean_upto_offset, "epoch": self._epoch}
        data = checksummed_json.encode(CLEANED_UPTO_FILE, content)
        write_atomically(f"{self.job.directory}/{CLEANED_UPTO_FILE}", data, disk=Disk())

    def abandon(self) -> None:
        swap.discard(self.job.directory, Disk())


def source_of(segment: Segment) -> Source:
    return Source(segment.base_offset, segment.next_offset, segment.size_bytes)


def job_for(candidate: Candidate, allowance: Allowance, now_ms: int) -> Job:
    """Everything the worker needs to know, so that it need not ask."""
    log, config = candidate.log, candidate.log.config
    upto_offset = candidate.upto_offset
    return Job(
        directory=log.path,
        sources=tuple(
            source_of(segment) for segment in log.segments if segment.base_offset < upto_offset
        ),
        first_dirty_offset=candidate.first_dirty_offset,
        upto_offset=upto_offset,
        aborted=tuple(
            AbortedRange(entry.producer_id, entry.first_offset, entry.last_offset)
            for segment in log.segments
            for entry in segment.aborted
            if entry.first_offset < upto_offset
        ),
        producers=tuple(
            (
                producer_id,
                producer.epoch,
                producer.batches[-1].last_offset if producer.batches else None,
            )
            for producer_id, producer in log.producers
        ),
        epoch_ends=tuple(start for _, start in log.epochs.entries()),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        map_bytes=allowance.map_bytes,
        io_bytes_per_second=allowance.io_bytes_per_second,
    )
