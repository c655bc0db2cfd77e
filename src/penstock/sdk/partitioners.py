"""Which partition a message goes to. `murmur2` agrees with Java's client to the bit, so both may write one topic. Pure."""

from collections.abc import Callable
from itertools import count
from typing import Final, Literal
from zlib import crc32

Partitioner = Callable[[bytes | None, int], int]
BuiltIn = Literal["murmur2", "sticky", "round_robin", "consistent", "random", "fnv1a"]

LIBRDKAFKA: Final = {  # done inside librdkafka, at no cost
    "murmur2": "murmur2_random",
    "sticky": "murmur2_random",
    "consistent": "consistent_random",
    "random": "random",
    "fnv1a": "fnv1a_random",
}
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number.

    >>> hex(murmur2(b"21"))
    '0xc5f2f8ec'
    """
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Where Java's default partitioner puts this key.

    >>> partition_of(b"order-17", 12)
    9
    """
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def builtin_hash(name: str, key: bytes | None) -> int | None:
    """What librdkafka's partitioner `name` takes modulo the number of partitions. `None` means any partition.

    >>> builtin_hash("murmur2_random", b"order-17") % 12, builtin_hash("random", b"order-17")
    (9, None)
    """
    if key is None:
        return None
    match name:
        case "murmur2" | "murmur2_random":
            return murmur2(key) & 0x7FFFFFFF
        case "consistent" | "consistent_random" if key:
            return crc32(key)
        case "fnv1a" | "fnv1a_random":
            return fnv1a(key)
        case _:
            return None


def fnv1a(data: bytes) -> int:
    """As librdkafka computes it: the hash as a signed number, without its sign."""
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & _MASK
    return h if h < 2**31 else 2**32 - h


def round_robin() -> Partitioner:
    """Keys by murmur2; messages without one go to each partition in turn."""
    turns = count()

    def choose(key: bytes | None, partition_count: int) -> int:
        return next(turns) % partition_count if key is None else partition_of(key, partition_count)

    return choose
