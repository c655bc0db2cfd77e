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
    **dict.fromkeys(
        ("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type"),
        "use kafka.ssl.ca.location with a PEM file",
    ),
    **dict.fromkeys(
        ("ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type"),
        "use kafka.ssl.certificate.location and kafka.ssl.key.location with PEM files, and kafka.ssl.key.password",
    ),
    **dict.fromkeys(
        (  # librdkafka would take them, and do nothing
            *("allow.auto.create.topics", "auto.commit.enable", "auto.commit.interval.ms"),
            *("auto.offset.reset", "check.crcs", "consume.callback.max.messages"),
            *("coordinator.query.interval.ms", "enable.auto.commit", "enable.auto.offset.store"),
            *("enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes"),
            *("fetch.message.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms"),
            *("fetch.wait.max.ms", "group.id", "group.instance.id", "group.protocol"),
            *("group.protocol.type", "group.remote.assignor", "heartbeat.interval.ms"),
            *("isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms"),
            *("offset.store.method", "offset.store.path", "offset.store.sync.interval.ms"),
            *("partition.assignment.strategy", "queued.max.messages.kbytes"),
            *("queued.min.messages", "session.timeout.ms"),
        ),
        "it is a setting of consumers, and the sink only writes",
    ),
    **dict.fromkeys(
        (
            *("background_event_cb", "consume_cb", "dr_cb", "dr_msg_cb", "error_cb", "logger"),
            *("on_commit", "on_delivery", "rebalance_cb", "stats_cb", "throttle_cb"),
        ),
        "an option is a text, and cannot be a function",
    ),
}
_WITHOUT_EFFECT: Final = frozenset(
    {  # they tune Java's client; no record depends on them
        "client.dns.lookup.timeout.ms",
        "enable.metrics.push",
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
_REACH: Final = "max.block.ms"
_OURS: Final = ("buffer.memory", _REACH)  # librdkafka has no such setting; they are honoured here
_LONGEST_REACH_MS: Final = (1 << 31) - 1  # librdkafka's; those who write Java mean for ever
_REACH_MS: Final = 10_000
_IDEMPOTENCE: Final = "enable.idempotence"
_ACKS: Final = ("acks", "request.required.acks")


class SinkError(ValueError):
    """The rows cannot be written as asked; the message names the column or option, and the remedy."""


class SinkPlan(NamedTuple):
    """All that a task needs: small, and plain data."""

    topic: str | None  # for every row; None: each row has its own
    columns: tuple[str, ...]  # of those that matter, the ones that the rows have
    producer: dict[str, Any]  # librdkafka's settings
    reach_ms: int  # how long a task looks for a broker that answers
    ignored: tuple[str, ...]  # options that are accepted, and without effect


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
    settings = producer_settings(given)
    return SinkPlan(topic, columns, settings, _reach_ms(given), _ignored(given))


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
        if name not in _WITHOUT_EFFECT and name not in _OURS
    )
    if "buffer.memory" in given:
        size_bytes = _number("buffer.memory", given["buffer.memory"], "bytes")
        chosen["queue.buffering.max.kbytes"] = max(1, size_bytes // 1024)
    waits_for_all = all(chosen.get(name, "all") in ("all", "-1") for name in _ACKS)
    chosen.setdefault(_IDEMPOTENCE, waits_for_all)
    return chosen


def _reach_ms(options: Mapping[str, str]) -> int:
    text = options.get(_KAFKA + _REACH)
    if text is None:
        return _REACH_MS
    return min(_number(_REACH, text.strip(), "milliseconds"), _LONGEST_REACH_MS)


def _number(name: str, text: str, unit: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise SinkError(f"option kafka.{name}: expected a number of {unit}, not {text!r}")
    return int(text)


def _ignored(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in options if name.removeprefix(_KAFKA) in _WITHOUT_EFFECT)


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _NAMES}
    for name in given:
        if name.startswith(_KAFKA) or name in known or name in _SPARKS_OWN:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise SinkError(f"option {name} is not one of the penstock sink{hint}")
