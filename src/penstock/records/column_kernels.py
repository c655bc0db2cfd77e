"""The loops over records, compiled by numba when this module is first imported (then cached).

They believe nothing: each varint and length is checked against the bytes there are. A read that
fails lands one past the end, where all that follow fail too, so that one check a record finds it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numba
import numba.core.cgutils
import numba.extending
import numpy as np
from numba import types

Kernel: TypeAlias = Callable[..., int]

njit: Any = numba.njit  # numba has few types, and those in the way here
intrinsic: Any = numba.extending.intrinsic
raw_memcpy: Any = numba.core.cgutils.raw_memcpy

# what a kernel may answer
DONE: Final = 0
FULL: Final = 1
CORRUPT: Final = 2

# the state of `index`. Where it goes on: batch, position in the data (-1: at the start of the batch),
# records left of the batch, last offset delta; and the rows it found
BATCH, POSITION, LEFT, DELTA, ROWS = range(5)
STATE_SIZE: Final = 5

# offsets of fields in the header of a batch, see batch.HEADER
_ATTRIBUTES: Final = 21
_LAST_DELTA: Final = 23
_FIRST_TIMESTAMP: Final = 27
_MAX_TIMESTAMP: Final = 35
_COUNT: Final = 57
_HEADER_SIZE: Final = 61

_INT: Final = types.int64
_DATA: Final = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES: Final = types.uint8[::1]
_BOOLS: Final = types.boolean[::1]
_INT8S: Final = types.int8[::1]
_INT32S: Final = types.int32[::1]
_INT64S: Final = types.int64[::1]


def _compiled(*arguments: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Cached beside the source, else in the user's cache directory, else (neither is writable) not."""

    def compiled(function: Callable[..., Any]) -> Kernel:
        signature = types.int64(*arguments)
        try:
            kernel: Kernel = njit([signature], nogil=True, cache=True)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            kernel = njit([signature], nogil=True)(function)
        return kernel

    return compiled


@intrinsic
def _copy(_: Any, target: Any, _at: Any, source: Any, _start: Any, _count: Any) -> Any:
    """memcpy of `source[start:start + count]` to `target[at:]`. A slice of numba's takes ten times that."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, origin, start, count = arguments
        to = context.make_array(signature.args[0])(context, builder, to).data
        origin = context.make_array(signature.args[2])(context, builder, origin).data
        one = context.get_constant(types.int64, 1)
        raw_memcpy(builder, builder.gep(to, [at]), builder.gep(origin, [start]), count, one)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@njit(inline="never")
def _long_varint(data: Any, position: int, end: int, bits: int) -> Any:
    raw = np.uint64(0)
    shift = 0
    while position < end and shift < bits:
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            if bits - shift < 7 and byte >> np.uint64(bits - shift):
                return 0, end + 1
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position
        shift += 7
    return 0, end + 1


# Positions index as unsigned: numba adds a check for Python's negative indexes otherwise (10 %).
@njit(forceinline=True)
def _varint(data: Any, position: int, end: int, bits: int) -> Any:
    """A zig-zag varint and the position after it; 0 and one past the end where there is none."""
    if position < end and data[np.uint64(position)] < 0x80:
        byte = np.int64(data[np.uint64(position)])
        return byte >> 1 ^ -(byte & 1), position + 1
    return _long_varint(data, position, end, bits)


@njit(forceinline=True)
def _big_endian(data: Any, position: int, size: int) -> Any:
    value = np.int64(0)
    for i in range(position, position + size):
        value = value << 8 | np.int64(data[np.uint64(i)])
    return value << (64 - 8 * size) >> (64 - 8 * size)  # the sign


@njit(forceinline=True)
def _skip_headers(data: Any, position: int, count: int, end: int) -> int:
    """The position after them, or one past the end. (Not more turns than there are bytes.)"""
    if not 0 <= count <= end - position:
        return end + 1
    for _ in range(count):
        length, position = _varint(data, position, end, 32)
        if length < 0 or position + length > end:
            return end + 1
        length, position = _varint(data, position + length, end, 32)
        position += max(length, 0)
    return position


@njit(forceinline=True)
def _record(data: Any, position: int, end: int) -> Any:
    """Its end (-1 if there is no record), the two deltas, and start and length of key, value, headers."""
    length, at = _varint(data, position, end, 32)
    record_end = at + length
    if length < 0 or record_end > end:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    time, at = _varint(data, at + 1, record_end, 64)  # after the attributes: none are defined
    delta, at = _varint(data, at, record_end, 32)
    key_length, key = _varint(data, at, record_end, 32)
    value_length, value = _varint(data, key + max(key_length, 0), record_end, 32)
    count, headers = _varint(data, value + max(value_length, 0), record_end, 32)
    at = _skip_headers(data, headers, count, record_end) if count else headers
    if at != record_end:
        record_end = -1
    return record_end, time, delta, key, key_length, value, value_length, headers, count


@_compiled(
    *(_DATA, _INT64S, _INT64S, _INT64S, _INT, _INT, _INT),
    *(_INT64S, _INT64S, _INT8S),
    *(_INT64S, _INT32S, _BOOLS),
    *(_INT64S, _INT32S, _BOOLS),
    *(_INT64S, _INT32S),
)
def index(
    data: Any, starts: Any, ends: Any, state: Any, from_offset: int, upto_offset: int, max_bytes: int,
    offsets: Any, timestamps: Any, timestamp_types: Any,
    key_starts: Any, key_ends: Any, key_valid: Any,
    value_starts: Any, value_ends: Any, value_valid: Any,
    header_starts: Any, header_ends: Any,
) -> int:  # fmt: skip
    """Where key, value and headers of each record lie, of batches that are not compressed.

    They begin at `starts`, end at `ends`, and the caller knows that each has 61 bytes. Goes on from
    `state` until the columns are full. Hot: benchmarks/decode.py.
    """
    rows, row_bytes = np.int64(0), np.int64(0)
    key_end, value_end, header_end = np.int64(0), np.int64(0), np.int64(0)
    key_ends[0] = value_ends[0] = header_ends[0] = 0
    batch, position, left, last_delta = state[BATCH], state[POSITION], state[LEFT], state[DELTA]
    result = DONE
    while batch < len(starts) and result == DONE:
        start, end = starts[batch], ends[batch]
        base_offset = _big_endian(data, start, 8)
        append_time = data[start + _ATTRIBUTES + 1] >> 3 & 1
        max_delta = _big_endian(data, start + _LAST_DELTA, 4)
        first_ms = _big_endian(data, start + _FIRST_TIMESTAMP, 8)
        max_ms = _big_endian(data, start + _MAX_TIMESTAMP, 8)
        if position < 0:
            position, last_delta = start + _HEADER_SIZE, np.int64(-1)
            left = _big_endian(data, start + _COUNT, 4)
        while left > 0:
            record_end, time, delta, key, key_length, value, value_length, headers, count = _record(
                data, position, end
            )
            if record_end < 0 or not last_delta < delta <= max_delta:
                result = CORRUPT
                break
            offset = base_offset + delta
            if from_offset <= offset < upto_offset:
                row_bytes += record_end - position
                if rows == len(offsets) or (row_bytes > max_bytes and rows > 0):
                    result = FULL
                    break
                offsets[rows] = offset
                timestamps[rows] = max_ms if append_time else first_ms + time
                timestamp_types[rows] = append_time
                key_starts[rows], value_starts[rows], header_starts[rows] = key, value, headers
                key_valid[rows], value_valid[rows] = key_length >= 0, value_length >= 0
                key_end += max(key_length, 0)
                value_end += max(value_length, 0)
                header_end += count
                rows += 1
                key_ends[rows], value_ends[rows], header_ends[rows] = key_end, value_end, header_end
            position, last_delta = record_end, delta
            left -= 1
        if result == DONE and (position != end or left < 0):
            result = CORRUPT
        if result == DONE:
            batch += 1
            position = np.int64(-1)
    state[BATCH], state[POSITION], state[LEFT], state[DELTA] = batch, position, left, last_delta
    state[ROWS] = rows
    return result


@_compiled(_DATA, _INT64S, _INT32S, _INT64S, _INT32S, _INT64S, _INT32S, _BOOLS)
def index_headers(
    data: Any, header_starts: Any, header_ends: Any,
    key_starts: Any, key_ends: Any, value_starts: Any, value_ends: Any, value_valid: Any,
) -> int:  # fmt: skip
    """Where key and value of each header lie, of records that `index` found."""
    end = len(data)
    key_ends[0] = value_ends[0] = 0
    key_bytes = value_bytes = np.int64(0)
    for row in range(len(header_starts)):
        position = header_starts[row]
        if position < 0:
            return CORRUPT
        for i in range(header_ends[row], header_ends[row + 1]):
            length, position = _varint(data, position, end, 32)
            key_starts[i] = position
            position += max(length, 0)
            key_bytes += max(length, 0)
            length, position = _varint(data, position, end, 32)
            value_starts[i] = position
            position += max(length, 0)
            value_bytes += max(length, 0)
            value_valid[i] = length >= 0
            if position > end:
                return CORRUPT
            key_ends[i + 1], value_ends[i + 1] = key_bytes, value_bytes
    return DONE


@_compiled(_DATA, _INT64S, _INT32S, _BYTES)
def gather(data: Any, starts: Any, ends: Any, target: Any) -> int:
    """Lays pieces of `data` one after another: the i-th begins at `starts[i]`, and goes to `ends[i]`."""
    for i in range(len(starts)):
        start, at = starts[i], np.int64(ends[i])
        count = np.int64(ends[i + 1]) - at
        if count > 0:
            if start < 0 or start + count > len(data) or at < 0 or at + count > len(target):
                return CORRUPT
            _copy(target, at, data, start, count)
    return DONE
