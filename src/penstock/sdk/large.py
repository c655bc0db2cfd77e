"""Values larger than a message may be: cut into parts by the producer, put together by the consumer. Pure.

All parts go to one partition, in order. Memory for parts whose rest never comes is bounded: the oldest are given up.
"""

import struct
from typing import Final, NamedTuple

PART_HEADER: Final = "penstock-part"
PENDING_LIMIT_BYTES: Final = 256 * 2**20
PENDING_LIMIT_OFFSETS: Final = (
    100_000  # parts that lie this far behind belong to a producer that died
)
_FORMAT: Final = struct.Struct(">16sIIQ")


class Part(NamedTuple):
    """Where a piece belongs: the value's id, this piece's number of `parts`, and the bytes of the whole."""

    id: bytes
    number: int
    parts: int
    total_bytes: int

    def encode(self) -> bytes:
        return _FORMAT.pack(*self)


class Whole(NamedTuple):
    value: bytes
    offsets: tuple[int, ...]


def decode_part(data: bytes | None) -> Part | None:
    """None for what is no part of ours: then the message is a message like any other."""
    if data is None or len(data) != _FORMAT.size:
        return None
    part = Part(*_FORMAT.unpack(data))
    return part if part.number < part.parts and part.parts <= part.total_bytes else None


def split(value: bytes, limit_bytes: int, part_id: bytes) -> list[tuple[Part, bytes]]:
    """The value in pieces of at most `limit_bytes`.

    >>> [(part.number, part.parts, piece) for part, piece in split(b"abcde", 2, bytes(16))]
    [(0, 3, b'ab'), (1, 3, b'cd'), (2, 3, b'e')]
    """
    assert limit_bytes > 0, "a part holds at least one byte"
    pieces = [value[start : start + limit_bytes] for start in range(0, len(value), limit_bytes)]
    return [
        (Part(part_id, index, len(pieces), len(value)), piece) for index, piece in enumerate(pieces)
    ]


class _Pending:
    __slots__ = ("offsets", "pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.offsets: list[int] = []
        self.size_bytes = 0


class Reassembler:
    """The parts of one partition, in offset order. `first_pending` is the offset that must not be committed past."""

    def __init__(
        self,
        limit_bytes: int = PENDING_LIMIT_BYTES,
        limit_offsets: int = PENDING_LIMIT_OFFSETS,
    ) -> None:
        self.given_up = 0
        self._limit_bytes = limit_bytes
        self._limit_offsets = limit_offsets
        self._pending: dict[bytes, _Pending] = {}  # in the order of their first offset
        self._size_bytes = 0

    @property
    def first_pending(self) -> int | None:
        first = next(iter(self._pending.values()), None)
        return None if first is None else first.offsets[0]

    def add(self, part: Part, piece: bytes, offset: int) -> Whole | None:
        """The whole value with the offsets of its parts, when this was the last that was missing."""
        pending = self._pending.setdefault(part.id, _Pending())
        pending.offsets.append(offset)
        if part.number not in pending.pieces:
            pending.pieces[part.number] = piece
            pending.size_bytes += len(piece)
            self._size_bytes += len(piece)
        if len(pending.pieces) < part.parts:
            return None
        self._forget(part.id)
        value = b"".join(pending.pieces[index] for index in range(part.parts))
        return Whole(value, tuple(pending.offsets))

    def give_up_old(self, offset: int) -> list[int]:
        """Forgets what is too old or too much; the offsets that need not be waited for any more."""
        released: list[int] = []
        while self._pending and (
            self._size_bytes > self._limit_bytes
            or offset - next(iter(self._pending.values())).offsets[0] > self._limit_offsets
        ):
            oldest = next(iter(self._pending))
            released += self._forget(oldest).offsets
            self.given_up += 1
        return released

    def _forget(self, part_id: bytes) -> _Pending:
        pending = self._pending.pop(part_id)
        self._size_bytes -= pending.size_bytes
        return pending
