"""What follows from the batches of a log: leader epochs, producers, aborted transactions.

It is kept in files so that it need not be read from the batches again; lost files are replayed.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records.batch import CONTROL_BIT, BatchHeader
from penstock.records.control import EndMarker, decode_marker, decode_promotion
from penstock.storage import epochs as epochs_file
from penstock.storage import snapshot
from penstock.storage.checksummed_json import Damaged
from penstock.storage.epochs import Epochs
from penstock.storage.files import Buffer, read_small, remove, write_atomically
from penstock.storage.producers import Producers
from penstock.storage.segment import Segment
from penstock.storage.snapshot import NO_MARK, Mark, Section
from penstock.storage.txn_index import NO_ENTRIES, digest

EPOCHS_FILE: Final = "leader-epochs"
PRODUCERS_FILE: Final = "producers.snapshot"


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int


class LogState:
    """Follows every batch that enters the log, in order."""

    __slots__ = ("epochs", "producers", "truncated_to")

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.producers = Producers()
        self.truncated_to: int | None = None  # since the recovery point was last written to disk

    def become(self, other: "LogState") -> None:
        """Follow what `other` has followed: the log was truncated."""
        self.epochs, self.producers = other.epochs, other.producers

    def apply(self, segment: Segment, header: BatchHeader, batch: Buffer, log_end: int) -> None:
        """Follow a batch that `segment` has, as a leader wrote it; the log ended at `log_end` before it."""
        self._follow_epoch(header, log_end)
        if header.producer_id >= 0:
            self._follow_producer(segment, header, batch)
        elif header.attributes & CONTROL_BIT:
            self._follow_promotion(header, batch)

    def _follow_epoch(self, header: BatchHeader, log_end: int) -> None:
        """An epoch begins where the log ended, as it does for its leader, also where a gap comes first."""
        if header.leader_epoch != self.epochs.latest:
            self.epochs.assign(header.leader_epoch, log_end)

    def _follow_producer(self, segment: Segment, header: BatchHeader, batch: Buffer) -> None:
        time_ms = header.max_timestamp_ms
        if not header.is_control:
            self.producers.record(header, header.base_offset, time_ms, time_ms)
        elif (marker := marker_in(batch, header)) is not None:
            self.end_transaction(segment, header, marker, header.base_offset, time_ms)

    def _follow_promotion(self, header: BatchHeader, batch: Buffer) -> None:
        with suppress(CorruptBatch):  # as in `marker_in`
            promotion = decode_promotion(batch, header)
            if promotion is not None:
                self.producers.promote(promotion)

    def end_transaction(
        self, segment: Segment, header: BatchHeader, marker: EndMarker, offset: int, now_ms: int
    ) -> None:
        aborted = self.producers.end_transaction(header, marker, offset, now_ms)
        if aborted is not None:
            segment.txns.add(aborted)

    def replay(self, segments: Iterable[Segment], epochs_from: int, producers_from: int) -> None:
        """Follow the batches on disk, for epochs from one offset on, for producers from another."""
        first, log_end = min(epochs_from, producers_from), epochs_from
        for segment in segments:
            found = segment.find(first) if segment.next_offset > first else None
            for position, header in segment.headers(found[0]) if found else ():
                if header.base_offset >= epochs_from:
                    self._follow_epoch(header, log_end)
                log_end = max(log_end, header.next_offset)
                if header.base_offset < producers_from:
                    continue
                if header.producer_id >= 0:
                    batch = segment.read_batch(position, header) if header.is_control else b""
                    self._follow_producer(segment, header, batch)
                elif header.is_control:
                    self._follow_promotion(header, segment.read_batch(position, header))

    # Files -----------------------------------------------------------------------------------

    def save_epochs(self, directory: str, truncated_to: int | None) -> str:
        path = f"{directory}/{EPOCHS_FILE}"
        write_atomically(path, self.epochs.encode(truncated_to))
        self.epochs.changed = False
        return path

    def save_producers(
        self, directory: str, segments: Sequence[Segment], offset: int, keep_upto: int
    ) -> str:
        """The state at the log's end, `offset`, beside the newest one that is not past `keep_upto`."""
        path = f"{directory}/{PRODUCERS_FILE}"
        older = [raw for section, raw in read_sections(directory) if section.offset <= keep_upto]
        aborted = {
            segment.base_offset: digest(segment.aborted, offset)
            for segment in segments
            if segment.aborted
        }
        mark = _mark_at(segments, offset) or NO_MARK
        written_ms = segments[-1].file.modified_ms()
        newest = snapshot.section_of(offset, mark, self.producers, aborted, written_ms)
        write_atomically(path, snapshot.encode([*older[-1:], newest]))
        return path


def marker_in(batch: Buffer, header: BatchHeader) -> EndMarker | None:
    try:
        return decode_marker(batch, header)
    except CorruptBatch:
        return None  # its checksum held: some other broker's control batch, kept as it is


def read_sections(directory: str) -> list[tuple[Section, bytes]]:
    """In order of offset; none if the file is lost or damaged."""
    data = read_small(f"{directory}/{PRODUCERS_FILE}")
    try:
        return [] if data is None else snapshot.decode(data)
    except Damaged:
        return []


def forget_producers(directory: str) -> None:
    """The log begins anew, with nothing of what they have written."""
    remove([f"{directory}/{PRODUCERS_FILE}"])


def read_epochs(directory: str) -> tuple[Epochs, int | None] | None:
    """None if the file is lost or damaged."""
    data = read_small(f"{directory}/{EPOCHS_FILE}")
    try:
        return None if data is None else epochs_file.decode(data)
    except Damaged:
        return None


def load(
    directory: str, segments: Sequence[Segment], epochs: Epochs | None, epochs_upto: int
) -> LogState:
    """The state at the end of the segments: from the files as far as the batches confirm them, then from
    batches. Of `epochs` only what lies below `epochs_upto` is looked at."""
    state = LogState()
    first_offset = segments[0].base_offset
    section = _usable_section(directory, segments)
    if section is not None:
        state.producers.restore(section.producers, section.promotion)
    producers_from = section.offset if section else first_offset
    for segment in segments:
        if segment.aborted:
            segment.txns.truncate(min(producers_from, segment.next_offset))
    if epochs is not None:
        epochs.truncate_end(epochs_upto)
    if epochs is not None and len(epochs) and _confirms(segments, epochs, epochs_upto):
        state.epochs = epochs
    else:
        epochs_upto = first_offset
    state.replay(segments, epochs_upto, producers_from)
    return state


def _confirms(segments: Sequence[Segment], epochs: Epochs, upto: int) -> bool:
    """Whether the last batch below `upto` is of the epoch that is noted there; then so are those before."""
    mark = _mark_at(segments, upto)
    return mark is None or mark.leader_epoch in (-1, epochs.epoch_at(upto - 1))


def _usable_section(directory: str, segments: Sequence[Segment]) -> Section | None:
    """The newest snapshot of this log, not of batches that were truncated since."""
    for section, _ in reversed(read_sections(directory)):
        if section.offset <= segments[-1].next_offset and _is_of(segments, section):
            return section
    return None


def _is_of(segments: Sequence[Segment], section: Section) -> bool:
    """Whether the log up to it is what it was, and so are the indexes of aborted transactions.

    One that is older than all that is left cannot be brought up to date: markers may be missing, and later sequences.
    """
    first_offset = segments[0].base_offset
    if section.offset < first_offset:
        return False
    if section.offset > first_offset and _mark_at(segments, section.offset) != section.mark:
        return False
    for segment in segments:
        if segment.base_offset >= section.offset:
            break
        expected = section.aborted.get(segment.base_offset, NO_ENTRIES)
        if digest(segment.aborted, section.offset) != expected:
            return False
    return True


def _mark_at(segments: Sequence[Segment], offset: int) -> Mark | None:
    """Of the batch that ends at `offset`; None if there is none."""
    for segment in reversed(segments):
        if segment.base_offset < offset:
            found = segment.find(offset - 1)
            if found is None or found[1].next_offset != offset:
                return None
            return Mark(found[1].leader_epoch, found[1].crc)
    return None


def aborted_transactions(
    segments: Iterable[Segment], from_offset: int, upto_offset: int
) -> list[AbortedTxn]:
    """Those with records in that range; `segments` begin with the one that holds `from_offset`."""
    found = []
    for segment in segments:
        for entry in segment.aborted:
            if entry.last_offset >= from_offset and entry.first_offset < upto_offset:
                found.append(AbortedTxn(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= upto_offset:
                return found  # whoever is aborted later began later
    return found
