"""What arguments and policies together say about a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.amqp.arguments import QueueProperties, QueueType, plain_argument
from penstock.amqp.overflow import LengthLimits, Overflow
from penstock.amqp.policies import effective_value
from penstock.amqp.priorities import classic_priority, quorum_priority

QUORUM_DELIVERY_LIMIT: Final = 20


class QueueSettings(NamedTuple):
    """`None` means without a limit, or off."""

    type: QueueType
    message_ttl_ms: int | None
    expires_ms: int | None
    limits: LengthLimits
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    max_priority: int
    single_active_consumer: bool
    delivery_limit: int | None
    consumer_timeout_ms: int | None

    def priority(self, priority: int | None) -> int:
        """Return the level of a message with this priority."""
        if self.type is QueueType.QUORUM:
            return quorum_priority(priority)
        return classic_priority(priority, self.max_priority)


def resolve_settings(properties: QueueProperties, policy: Mapping[str, Any]) -> QueueSettings:
    """Combine the arguments of a queue with the definition of its effective policy."""

    def value(key: str) -> Any:
        return effective_value(key, plain_argument(properties.arguments, f"x-{key}"), policy)

    kind = properties.type
    overflow = Overflow(value("overflow") or Overflow.DROP_HEAD)
    limit = value("delivery-limit")
    if limit is None and kind is QueueType.QUORUM:
        limit = QUORUM_DELIVERY_LIMIT
    return QueueSettings(
        type=kind,
        message_ttl_ms=value("message-ttl"),
        expires_ms=value("expires"),
        limits=LengthLimits(value("max-length"), value("max-length-bytes"), overflow),
        dead_letter_exchange=value("dead-letter-exchange"),
        dead_letter_routing_key=value("dead-letter-routing-key"),
        max_priority=value("max-priority") or 0,
        single_active_consumer=bool(value("single-active-consumer")),
        delivery_limit=None if limit is None or limit < 0 else limit,
        consumer_timeout_ms=value("consumer-timeout") or None,
    )
