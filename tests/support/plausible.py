"""Requests that a broker takes seriously: every field has a value of the kind that real clients send.

Fuzzing starts from these, so that mutations reach the handlers and not only the first length check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.wire.fields import Field, Kind, StructType
from penstock.wire.header import decode_request_header
from penstock.wire.messages.api_versions import ApiVersion
from penstock.wire.schema import Message
from tests.support.raw_client import encode_request
from tests.unit.wire.catalogue import all_messages, random_primitive

_NOW_MS: Final = 1_700_000_000_000
_CONFIGS: Final = ("retention.ms", "segment.bytes", "cleanup.policy", "min.insync.replicas", "none")
_VALUES: Final = ("1000", "104857600", "delete", "compact", "-1", "")
_LONGEST_BYTES: Final = 64
_TAME: Final = {
    "max_wait_ms",
    "timeout_ms",
    "session_timeout_ms",
    "rebalance_timeout_ms",
}  # they make us wait


@dataclass(frozen=True)
class World:
    """What exists in the broker under test, by name and id."""

    topics: Mapping[str, bytes]
    partitions: int = 2


@dataclass(frozen=True)
class Valid:
    """One whole frame that the broker must understand."""

    frame: bytes
    body_at: int  # after the size and the request header


def valid_requests(
    apis: list[ApiVersion], world: World, random: Random, wildness: float = 0.03
) -> list[Valid]:
    """A request of every API in every version that the broker advertises and we can write.

    `wildness` is how likely a field is to have any value of its type instead of a plausible one.
    """
    requests = {
        message.api_key: message
        for message in all_messages()
        if message.__name__.endswith("Request")
    }
    found = []
    for api in apis:
        request = requests[api.api_key]
        for version in range(api.min_version, api.max_version + 1):
            if version in request.versions:
                message = plausible(request, version, world, random, wildness)
                frame = encode_request(message, version)
                found.append(Valid(frame, 4 + decode_request_header(memoryview(frame)[4:])[1]))
    return found


def plausible(
    message: type[Message],
    version: int,
    world: World,
    random: Random,
    wildness: float = 0.0,
) -> Message:
    made = plausible_struct(message, version, world, random, wildness)
    assert isinstance(made, message)
    return made


def plausible_struct(
    struct: StructType, version: int, world: World, random: Random, wildness: float = 0.0
) -> Any:
    return _Builder(version, world, random, wildness).struct(struct)


@dataclass(frozen=True)
class _Builder:
    version: int
    world: World
    random: Random
    wildness: float

    def struct(self, struct: StructType) -> Any:
        is_config = "Config" in struct.__name__
        return struct(
            **{
                name: self._value("config_name" if is_config and name == "name" else name, field)
                for name, field in struct.fields.items()
                if field.present_in(self.version)
            }
        )

    def _value(self, name: str, field: Field) -> Any:
        unlikely = 0.9 if name == "transactional_id" else 0.1
        if field.nullable_in(self.version) and self.random.random() < unlikely:
            return None
        if field.kind == "struct" and isinstance(field.element, StructType):
            return self.struct(field.element)
        if field.kind == "array":
            count = self.random.choice((0, 1, 1, 1, 2))
            return [self._element(name, field) for _ in range(count)]
        return self._primitive(name, field.kind)

    def _element(self, name: str, field: Field) -> Any:
        if isinstance(field.element, StructType):
            return self.struct(field.element)
        assert isinstance(field.element, Kind)
        return self._primitive(name, field.element.name)

    def _primitive(self, name: str, kind: str) -> Any:
        random, world = self.random, self.world
        if random.random() < self.wildness and name not in _TAME:
            return random_primitive(kind, random, _LONGEST_BYTES)
        chooser = _BY_NAME.get(name)
        if chooser is not None and _fits(kind, value := chooser(world, random)):
            return value
        match kind:
            case "string":
                return random.choice((*world.topics, "fuzz", ""))
            case "uuid":
                return random.choice((*world.topics.values(), bytes(16)))
            case "records":
                return memoryview(plausible_batch(random))
            case "int8" | "int16" | "int32" | "int64":
                return random.choice((0, 0, 1, -1, 2))
            case _:
                return random_primitive(kind, random, _LONGEST_BYTES)


def _fits(kind: str, value: object) -> bool:
    return isinstance(value, str if kind == "string" else int) and kind not in ("bool", "uuid")


def plausible_batch(random: Random) -> bytes:
    """A small batch of any codec, as a producer would send it."""
    records = [
        Record(
            offset,
            _NOW_MS + random.randrange(5),
            random.choice((None, b"", b"key")),
            random.choice((None, b"", random.randbytes(random.randrange(50)))),
            random.choice(((), (("h", b"v"),), (("h", None), ("", b"")))),
        )
        for offset in range(random.randint(1, 4))
    ]
    return bytes(build_batch(records, codec=random.choice(list(Codec))))


def _of(*values: int | str) -> Callable[[World, Random], int | str]:
    return lambda _, random: random.choice(values)


def _topic(world: World, random: Random) -> str:
    return random.choice(tuple(world.topics))


def _partition(world: World, random: Random) -> int:
    return random.randrange(world.partitions)


_BY_NAME: Final[Mapping[str, Callable[[World, Random], int | str]]] = {
    "topic": _topic,
    "topic_name": _topic,
    "name": _topic,
    "resource_name": lambda world, random: random.choice((*world.topics, "1", "")),
    "resource_type": _of(2, 4),
    "config_name": _of(*_CONFIGS),
    "config_names": _of(*_CONFIGS),
    "configuration_keys": _of(*_CONFIGS),
    "config_operation": _of(0, 1, 2, 3),
    "value": _of(*_VALUES),
    "partition": _partition,
    "partition_index": _partition,
    "partition_indexes": _partition,
    "partitions": _partition,
    "index": _partition,
    "acks": _of(-1, 0, 1),
    "timeout_ms": _of(0, 100),
    "max_wait_ms": _of(0, 0, 1, 20),
    "min_bytes": _of(0, 1),
    "max_bytes": _of(0, 1000, 1 << 20),
    "partition_max_bytes": _of(0, 1000, 1 << 20),
    "fetch_offset": _of(0, 0, 1, 5),
    "offset": _of(-1, 0, 1),
    "timestamp": _of(-1, -2, -3, _NOW_MS),
    "isolation_level": _of(0, 1),
    "session_id": _of(0, 0, 1),
    "session_epoch": _of(-1, 0, 1),
    "replica_id": _of(-1),
    "current_leader_epoch": _of(-1, 0),
    "leader_epoch": _of(-1, 0),
    "num_partitions": _of(-1, 1, 2),
    "count": _of(1, 2, 3),
    "replication_factor": _of(-1, 1),
    "broker_ids": _of(1),
    "key_type": _of(0, 1),
    "key": _of("group"),
    "coordinator_keys": _of("group"),
    "group_id": _of("group"),
    "transaction_timeout_ms": _of(1000, 60_000),
    "session_timeout_ms": _of(6000),
    "rebalance_timeout_ms": _of(0, 100),
    "protocol_type": _of("consumer"),
}
