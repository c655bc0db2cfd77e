"""Strategies for records and batches, shared by the tests of records and of compaction."""

from typing import Any

from hypothesis import strategies as st

from penstock.records.compression import Codec
from penstock.records.record import Record

codecs = st.sampled_from(Codec)
_bytes = st.none() | st.binary(max_size=200)
_headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 12, base_offset: int = 0) -> list[Record]:
    """Records as a producer sends them: offsets without holes, timestamps in any order."""
    return [
        Record(base_offset + i, time, key, value, tuple(headers))
        for i, (time, key, value, headers) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.integers(0, 1 << 45), _bytes, _bytes, _headers),
                    min_size=1,
                    max_size=max_size,
                )
            )
        )
    ]


@st.composite
def producers(draw: st.DrawFn) -> dict[str, Any]:
    """Nobody, an idempotent producer, or a transactional one: arguments of `build_batch`."""
    if draw(st.booleans()):
        return {}
    return {
        "producer_id": draw(st.integers(0, (1 << 63) - 1)),
        "producer_epoch": draw(st.integers(0, (1 << 15) - 1)),
        "base_sequence": draw(st.integers(0, (1 << 31) - 1)),
        "transactional": draw(st.booleans()),
    }
