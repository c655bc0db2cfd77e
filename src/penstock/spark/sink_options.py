"""The options and columns of `format("penstock")` when it writes: those of Spark's own `kafka` sink, honoured or refused by name.

`kafka.*` are settings of Kafka's Java producer; here librdkafka sends, so some have another name or no counterpart.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

TOPIC: Final = "topic"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
PARTITION: Final = "partition"

_BYTES: Final = ("string", "binary")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    TOPIC: ("string",),
    KEY: _BYTES,
    VALUE: _BYTES,
    HEADERS: ("array<struct<key:string,value:binary>>",),
    PARTITION: ("int",),
}

_KAFKA: Final = "kafka."
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
_NAMES: Final = ("topic", "includeHeaders", "kafka.bootstrap.servers")

_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "sasl.mechanism": "sasl.mechanisms",
}
_REFUSED: Final = {
    "key.serializer": "keys are bytes already; convert them in the query",
    "value.serializer": "values are bytes already; convert them in the query",
    "transactional.id": "the sink writes at least once; for exactly once use: penstock pipeline transform",
    "transaction.timeout.ms": "the sink does not use transactions",
    "partitioner.class": "there is no Java here; give a column named partition",
    "interceptor.classes": "there is no Java here for them to run in",
    "metric.reporters": "there is no Java here for them to run in",
    "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.password": "use kafka.ssl.ca.location with a PEM file",
    "ssl.keystore.password": "use kafka.ssl.key.password",
}
_WITHOUT_EFFECT: Final = frozenset(
    {  # they tune Java's client; no record depends on them
        "client.dns.lookup.timeout.ms",
        "enable.metrics.push",
        "max.block.ms",
        "metadata.max.idle.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
    }
)
_DEFAULTS: Final[dict[str, Any]] = {
    "acks": "all",
    "client.id": "penstock-spark",
    "compression.type": "none",
    "delivery.timeout.ms": 120_000,  # Java's default
    "delivery.report.only.error": True,  # a callback for each record that arrived would cost more than sending it
    "linger.ms": 20,
    "partitioner": "murmur2_random",  # a key goes where Java's producer would send it
    "queue.buffering.max.kbytes": 64 * 1024,  # what one task may hold in memory
    "queue.buffering.max.messages": 500_000,
}
_IDEMPOTENCE: Final = "enable.idempotence"
_ACKS: Final = ("acks", "request.required.acks")


class SinkError(ValueError):
    """The rows cannot be written as asked; the message names the column or option, and the remedy."""


class SinkPlan(NamedTuple):
    """All that a task needs: small, and plain data."""

    topic: str | None  # for every row; None: each row has its own
    columns: tuple[str, ...]  # of those that matter, the ones that the rows have
    producer: dict[str, Any]  # librdkafka's settings


def plan_sink(types: Mapping[str, str], options: Mapping[str, str]) -> SinkPlan:
    """`types`: of the rows' columns, as Spark spells them. Columns that mean nothing here are ignored."""
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given)
    topic = given[TOPIC].strip() if TOPIC in given else None
    if topic == "":
        raise SinkError("option topic is empty; give the name of a topic")
    if topic is None and TOPIC not in types:
        raise SinkError("no topic to write to; give the option topic, or a column named topic")
    if VALUE not in types:
        raise SinkError(f"no column named value; the columns are {', '.join(types) or 'none'}")
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed and not (name == TOPIC and topic):
            raise SinkError(
                f"column {name} is {types[name]}, and must be {' or '.join(allowed)}; cast it first"
            )
    columns = tuple(name for name in _TYPES if name in types and not (name == TOPIC and topic))
    return SinkPlan(topic, columns, producer_settings(given))


def producer_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """librdkafka's settings; `options` in lower case."""
    given = {
        name.removeprefix(_KAFKA): value.strip()
        for name, value in options.items()
        if name.startswith(_KAFKA)
    }
    for name in given:
        if name in _REFUSED:
            raise SinkError(f"option kafka.{name} is not supported: {_REFUSED[name]}")
    if not given.get("bootstrap.servers"):
        raise SinkError("option kafka.bootstrap.servers is missing; give host:port of a broker")
    chosen = dict(_DEFAULTS)
    chosen.update(
        (_RENAMED.get(name, name), value)
        for name, value in given.items()
        if name not in _WITHOUT_EFFECT and name != "buffer.memory"
    )
    if "buffer.memory" in given:
        chosen["queue.buffering.max.kbytes"] = _kbytes(given["buffer.memory"])
    waits_for_all = all(chosen.get(name, "all") in ("all", "-1") for name in _ACKS)
    chosen.setdefault(_IDEMPOTENCE, waits_for_all)
    return chosen


def _kbytes(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise SinkError(f"option kafka.buffer.memory: expected a number of bytes, not {text!r}")
    return max(1, int(text) // 1024)


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _NAMES}
    for name in given:
        if name.startswith(_KAFKA) or name in known or name in _SPARKS_OWN:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise SinkError(f"option {name} is not one of the penstock sink{hint}")
