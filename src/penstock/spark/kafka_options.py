"""The `kafka.*` options of the source: settings of Kafka's consumer, each honoured, without effect here, or refused."""

from typing import Final

HONOURED: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "group.id",
        "isolation.level",
        "max.partition.fetch.bytes",
        "receive.buffer.bytes",
        "request.timeout.ms",
        "security.protocol",
    }
)

# They tune a client that is a group's member, or a Java one. No row depends on them.
WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)

_REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets instead; a query keeps its own offsets",
    "key.deserializer": "keys are always bytes; convert them in the query",
    "value.deserializer": "values are always bytes; convert them in the query",
    "enable.auto.commit": "a query keeps its own offsets; groupId publishes its progress",
    "interceptor.classes": "there is no Java client here for them to run in",
}
_SECURITY: Final = ("ssl.", "sasl.", "security.")
_PLAINTEXT: Final = "plaintext"


def refusal(name: str, value: str) -> str | None:
    """Why the option cannot be used, or None. `name` is in lower case and without `kafka.`."""
    if reason := _REFUSED.get(name):
        return f"option kafka.{name} is not supported: {reason}"
    if name == "security.protocol" and value.strip().lower() == _PLAINTEXT:
        return None
    if name.startswith(_SECURITY):
        shown = f"={value.strip()}" if name == "security.protocol" else ""
        return (
            f"option kafka.{name}{shown} is not supported: the penstock source speaks PLAINTEXT only, "
            "without TLS and SASL"
        )
    if name in HONOURED or name in WITHOUT_EFFECT:
        return None
    return f"option kafka.{name} is not supported: the penstock source does not know this setting"
