"""Ways to spoil a frame, each drawn from a Random: the same seed spoils the same way again."""

from collections.abc import Callable, Sequence
from random import Random
from struct import Struct
from typing import Final

from penstock.records.batch import HEADER_SIZE, renew_checksum
from tests.support.plausible import Valid

_PREFIX_BYTES: Final = 4
_BYTES: Final = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
_INTEGERS: Final = (-1, 0, 1, -2, 0x7F, 0x80, 0x7FFF, 0x8000, 1 << 20, 0x7FFFFFFF, -(1 << 31))
_VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x00",
    b"\xff" * 10,
)
_INT: Final = Struct(">i")
_MAGIC_AT: Final = 16

Mutation = Callable[[bytearray, Random], None]


def _flip_bits(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_bytes(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 2, 4))):
        data[random.randrange(len(data))] = random.choice(_BYTES)


def _write_integer(data: bytearray, random: Random) -> None:
    """A count, a length or a size that claims far too much, or less than nothing."""
    value = random.choice(_INTEGERS).to_bytes(8, "big", signed=True)[-random.choice((2, 4, 8)) :]
    at = random.randrange(len(data))
    data[at : at + len(value)] = value


def _write_varint(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    value = random.choice(_VARINTS)
    data[at : at + random.choice((1, len(value)))] = value


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def _grow(data: bytearray, random: Random) -> None:
    data += random.randbytes(random.choice((1, 4, 100)))


def _remove(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.choice((1, 2, 4, 16))]


def _repeat(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    piece = data[at : at + random.choice((1, 4, 16, 64))]
    data[at:at] = piece * random.choice((1, 1, 50))


def _noise(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data)) :] = random.randbytes(random.choice((0, 10, 100, 1000)))


_MUTATIONS: Final[Sequence[Mutation]] = (
    _flip_bits,
    _set_bytes,
    _write_integer,
    _write_integer,
    _write_varint,
    _cut,
    _grow,
    _remove,
    _repeat,
    _noise,
)


def mutate(data: bytearray, random: Random) -> None:
    """Spoil bytes in one place or several."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if data:
            random.choice(_MUTATIONS)(data, random)


def spoil(valid: Valid, others: Sequence[Valid], random: Random) -> bytes:
    """A frame that is wrong in one way or several, or, now and then, in none."""
    if random.random() < 0.1:
        return valid.frame
    kept = valid.body_at if random.random() < 0.85 else _PREFIX_BYTES  # mostly spare the header
    head, body = valid.frame[_PREFIX_BYTES:kept], bytearray(valid.frame[kept:])
    if random.random() < 0.1:
        _splice(body, random.choice(others).frame[_PREFIX_BYTES:], random)
    if random.random() < 0.25:
        spoil_batch_inside(body, random)
    else:
        mutate(body, random)
    size = len(head) + len(body)
    return _INT.pack(_claimed_size(size, random)) + head + body


def _splice(body: bytearray, other: bytes, random: Random) -> None:
    del body[random.randint(0, len(body)) :]
    body += other[random.randrange(len(other)) :]


def _claimed_size(size: int, random: Random) -> int:
    """Mostly the truth: a wrong size is found out before anything else is looked at."""
    if random.random() < 0.97:
        return size
    return random.choice((*_INTEGERS, size + 1, size + 1000, max(0, size - 1)))


def spoil_batch_inside(body: bytearray, random: Random) -> None:
    """Garbage in a record batch, if there is one, under a checksum that is right."""
    at = _find_batch(body)
    if at is None:
        if body:
            _flip_bits(body, random)
        return
    length = _INT.unpack_from(body, at + 8)[0] + 12
    batch = body[at : at + length]
    spoil_batch(batch, random)
    body[at : at + length] = batch


def spoil_batch(batch: bytearray, random: Random) -> None:
    """Change fields and records, not the size; then renew the checksum."""
    for _ in range(random.choice((1, 1, 2, 3))):
        first = 21 if random.random() < 0.5 or len(batch) <= HEADER_SIZE else HEADER_SIZE
        at = random.randrange(first, len(batch))
        value = random.choice((b"\xff", b"\x80", b"\x00", b"\x01", random.randbytes(4)))
        batch[at : at + len(value)] = value[: len(batch) - at]
    renew_checksum(memoryview(batch))


def _find_batch(body: bytearray) -> int | None:
    """Where a whole batch of format 2 seems to begin."""
    for at in range(len(body) - HEADER_SIZE):
        if body[at + _MAGIC_AT] == 2 and not any(body[at : at + 8]):
            length = _INT.unpack_from(body, at + 8)[0] + 12
            if HEADER_SIZE <= length <= len(body) - at:
                return at
    return None
