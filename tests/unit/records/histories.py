"""Histories of a compacted partition: plain, idempotent and transactional batches, markers, tombstones."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from penstock.records.batch import parse_header
from penstock.records.builder import build_batch
from penstock.records.compaction import AbortedRange, ProducerTail
from penstock.records.compression import Codec
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record

PRODUCERS = (1, 2, 3)
NOBODY = -1


class Step(NamedTuple):
    """One append: records of a producer (in a transaction or not), or the end of its transaction."""

    producer_id: int
    transactional: bool
    end: ControlType | None
    codec: Codec
    records: list[tuple[bytes | None, bytes | None, int]]  # key, value, timestamp


@dataclass
class History:
    batches: list[bytearray] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)  # by offset; no markers
    undecided: dict[int, list[int]] = field(default_factory=dict)  # offsets, by producer
    aborted_offsets: set[int] = field(default_factory=set)
    aborted: list[AbortedRange] = field(default_factory=list)
    tails: dict[int, ProducerTail] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def last_stable_offset(self) -> int:
        return min((offsets[0] for offsets in self.undecided.values()), default=self.next_offset)

    def append(self, step: Step) -> None:
        if step.end is not None:
            self._end(step.producer_id, step.end)
        elif step.records:
            self._write(step)

    def _write(self, step: Step) -> None:
        base, pid = self.next_offset, step.producer_id
        # a producer with an open transaction writes nothing outside of it
        transactional = pid != NOBODY and (step.transactional or pid in self.undecided)
        records = [
            Record(base + i, time, key, value, (("n", b"%d" % base),))
            for i, (key, value, time) in enumerate(step.records)
        ]
        batch = build_batch(
            records,
            base_offset=base,
            codec=step.codec,
            leader_epoch=1,
            producer_id=pid,
            producer_epoch=0 if pid != NOBODY else -1,
            base_sequence=self.sequences.get(pid, 0) if pid != NOBODY else -1,
            transactional=transactional,
        )
        self.batches.append(batch)
        self.records.update((record.offset, record) for record in records)
        self.next_offset += len(records)
        if pid != NOBODY:
            self.sequences[pid] = self.sequences.get(pid, 0) + len(records)
            self.tails[pid] = ProducerTail(0, self.next_offset - 1)
        if transactional:
            self.undecided.setdefault(pid, []).extend(record.offset for record in records)

    def _end(self, pid: int, end: ControlType) -> None:
        """Also without a transaction: a coordinator may write a marker where there was no data."""
        batch = build_marker(
            EndMarker(end, 0),
            producer_id=pid,
            producer_epoch=0,
            timestamp_ms=5,
            base_offset=self.next_offset,
            leader_epoch=1,
        )
        self.batches.append(batch)
        offsets = self.undecided.pop(pid, [])
        if end is ControlType.ABORT and offsets:
            self.aborted.append(AbortedRange(pid, offsets[0], self.next_offset))
            self.aborted_offsets.update(offsets)
        self.tails.setdefault(pid, ProducerTail(0, None))
        self.next_offset += 1

    def boundaries(self) -> list[int]:
        """Offsets at which a round may end: after a batch, and not past an open transaction."""
        ends = [parse_header(batch).next_offset for batch in self.batches]
        return [end for end in ends if end <= self.last_stable_offset]


_keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]) | st.none()
_values = st.sampled_from([b"x", b"value" * 20, None, None])
_entries = st.lists(st.tuples(_keys, _values, st.integers(0, 1 << 41)), min_size=1, max_size=4)
_writes = st.builds(
    Step,
    producer_id=st.sampled_from((NOBODY, *PRODUCERS)),
    transactional=st.booleans(),
    end=st.none(),
    codec=st.sampled_from(Codec),
    records=_entries,
)
_ends = st.builds(
    Step,
    producer_id=st.sampled_from(PRODUCERS),
    transactional=st.just(True),
    end=st.sampled_from(ControlType),
    codec=st.just(Codec.NONE),
    records=st.just([]),
)
steps = st.lists(_writes | _writes | _ends, min_size=1, max_size=14)
