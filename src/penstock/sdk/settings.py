"""Python names for settings, as Kafka's Java client and librdkafka spell them; what is unknown is refused by name. Pure."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final

from penstock.sdk.errors import ConfigurationError

# librdkafka's 1000 lets a quick reader wait a second whenever its queue was full
FETCH_BACKOFF_MS: Final = 20
# librdkafka's 5 minutes let a running consumer wait that long for partitions that were added
METADATA_REFRESH_MS: Final = 15_000


class Role(Enum):
    PRODUCER = "producer"
    CONSUMER = "consumer"


_SHARED: Final = """
    allow.auto.create.topics api.version.request.timeout.ms broker.address.family broker.address.ttl client.dns.lookup client.id
    client.rack connections.max.idle.ms debug enable.metrics.push enable.ssl.certificate.verification https.ca.location
    log.connection.close log_level max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
    socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
_PRODUCER_ONLY: Final = """
    acks batch.num.messages batch.size compression.level compression.type delivery.timeout.ms enable.gapless.guarantee
    enable.idempotence linger.ms queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms
    transactional.id
"""
_CONSUMER_ONLY: Final = """
    auto.commit.interval.ms check.crcs coordinator.query.interval.ms enable.auto.commit
    fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level
    max.partition.fetch.bytes max.poll.interval.ms partition.assignment.strategy queued.max.messages.kbytes
    queued.min.messages session.timeout.ms
"""

_Convert = Callable[[Any], Any]


def _as_is(value: Any) -> Any:
    return value


def _kilobytes(size_bytes: Any) -> int:
    """librdkafka counts this buffer in KiB; a part of one counts whole."""
    if int(size_bytes) < 1:
        raise ValueError("no room")
    return -(-int(size_bytes) // 1024)


def _acks(value: Any) -> Any:
    """librdkafka takes any number, and the broker refuses it with the first message."""
    if str(value) not in ("all", "-1", "0", "1"):
        raise ConfigurationError(f"acks={value!r}", remedy="give 'all', 1 or 0")
    return value


def _at_most_int32(value: Any) -> int:
    return min(int(value), 2**31 - 1)


def _names(text: str) -> dict[str, tuple[str, _Convert]]:
    return {name.replace(".", "_"): (name, _as_is) for name in text.split()}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JAVA_SHARED: Final[dict[str, tuple[str, _Convert]]] = {
    "metadata_max_age_ms": ("topic.metadata.refresh.interval.ms", _as_is),
    "max_in_flight_requests": ("max.in.flight.requests.per.connection", _as_is),
    "send_buffer_bytes": ("socket.send.buffer.bytes", _as_is),
    "receive_buffer_bytes": ("socket.receive.buffer.bytes", _as_is),
    "ssl_truststore_location": ("ssl.ca.location", _as_is),
}
_TABLE: Final[dict[Role, dict[str, tuple[str, _Convert]]]] = {
    Role.PRODUCER: _names(_SHARED) | _names(_PRODUCER_ONLY) | _JAVA_SHARED | {
        "acks": ("acks", _acks),
        "buffer_memory": ("queue.buffering.max.kbytes", _kilobytes),
        "buffer_messages": ("queue.buffering.max.messages", _as_is),
        "max_request_size": ("message.max.bytes", _as_is),
        "retries": ("retries", _at_most_int32),
    },
    Role.CONSUMER: _names(_SHARED) | _names(_CONSUMER_ONLY) | _JAVA_SHARED | {
        "fetch_max_wait_ms": ("fetch.wait.max.ms", _as_is),
        "request_timeout_ms": ("socket.timeout.ms", _as_is),
    },
}  # fmt: skip
_ARGUMENTS: Final = {  # what the constructors take themselves
    Role.PRODUCER: _words(
        "key_serializer librdkafka max_block_ms on_full partitioner rate_limit split_large value_serializer"
    ),
    Role.CONSUMER: _words(
        "auto_offset_reset key_deserializer librdkafka max_poll_records on_assign on_lost on_revoke value_deserializer"
    ),
}
_ELSEWHERE: Final = {  # what other clients call it
    "bootstrap_servers": "bootstrap, the first argument",
    "bootstrap": "bootstrap, the first argument",
    "brokers": "bootstrap, the first argument",
    "topic": "topics, the second argument of a Consumer",
}
_ALIASES: Final = {  # librdkafka's older names, which it uses when it complains
    "compression.codec": "compression_type",
    "max.in.flight": "max_in_flight_requests",
    "max.in.flight.requests.per.connection": "max_in_flight_requests",
    "message.max.bytes": "max_request_size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery_timeout_ms",
    "queue.buffering.max.kbytes": "buffer_memory",
    "queue.buffering.max.messages": "buffer_messages",
    "queue.buffering.max.ms": "linger_ms",
    "request.required.acks": "acks",
}


def in_our_words(complaint: str) -> str:
    """What librdkafka says about a setting, with the name that the application gave.

    >>> in_our_words('Invalid value "zst" for configuration property "compression.codec"')
    "Invalid value 'zst' for compression_type"
    """
    named = re.sub(r"[\"`]([a-z]+(?:\.[a-z]+)+)[\"`]", _our_name, complaint.strip())
    return re.sub(r"[Cc]onfiguration property (?=\w)", "", named).replace('"', "'")


def _our_name(found: re.Match[str]) -> str:
    name = found[1]
    ours = _ALIASES.get(name, name.replace(".", "_"))
    is_known = any(ours in table for table in _TABLE.values())
    return ours if is_known else f"'{name}'"


def known(role: Role) -> frozenset[str]:
    """Every name that `translate` takes."""
    return frozenset(_TABLE[role])


def translate(role: Role, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their Python names as librdkafka takes them; `None` leaves one at its default.

    >>> translate(Role.PRODUCER, {"linger_ms": 5, "buffer_memory": 33_554_432, "acks": None})
    {'linger.ms': 5, 'queue.buffering.max.kbytes': 32768}
    >>> translate(Role.PRODUCER, {"linger": 5})
    Traceback (most recent call last):
        ...
    penstock.sdk.errors.ConfigurationError: a producer has no setting 'linger'; did you mean 'linger_ms'?
    """
    table = _TABLE[role]
    made: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in settings.items():
        if name not in table:
            raise _unknown(role, name)
        if value is None:
            continue
        property_name, convert = table[name]
        if property_name in made:
            raise ConfigurationError(
                f"{given_as[property_name]} and {name} are the same setting",
                remedy="give one of them",
            )
        given_as[property_name] = name
        made[property_name] = _converted(name, value, convert)
    return made


def _converted(name: str, value: Any, convert: _Convert) -> Any:
    try:
        return convert(value)
    except ConfigurationError:
        raise
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name}={value!r}", remedy="give a number above 0") from None


def _unknown(role: Role, name: str) -> ConfigurationError:
    if name in _ELSEWHERE:
        return ConfigurationError(
            f"a {role.value} has no setting {name!r}", remedy=f"it is called {_ELSEWHERE[name]}"
        )
    other = next(other for other in Role if other is not role)
    if name in _TABLE[other] or name in _ARGUMENTS[other]:
        return ConfigurationError(
            f"{name!r} is a setting of a {other.value}, not of a {role.value}",
            remedy=_near(role, name, cutoff=0.8),
        )
    return ConfigurationError(f"a {role.value} has no setting {name!r}", remedy=_near(role, name))


def _near(role: Role, name: str, cutoff: float = 0.0) -> str:
    wanted = name.replace(".", "_").replace("-", "_").lower()
    names = sorted(known(role) | _ARGUMENTS[role])
    near = get_close_matches(wanted, names, n=1, cutoff=cutoff if len(wanted) > 2 else 0.6)
    return f"did you mean {near[0]!r}?" if near else ""
