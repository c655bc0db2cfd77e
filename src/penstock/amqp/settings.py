"""The settings of AMQP connections, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.amqp.context import ChannelLimits
from penstock.wire.amqp.tables import FieldTable, as_table

CAPABILITIES: Mapping[str, Any] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class ConnectionSettings(NamedTuple):
    product: str = "Penstock"  # some clients choose their behaviour by it
    version: str = ""
    platform: str = ""
    cluster_name: str = ""
    channel_max: int = 2047
    frame_max_bytes: int = 131_072
    heartbeat_s: int = 60
    handshake_timeout_ms: int = 10_000
    close_timeout_ms: int = 30_000  # for the client's connection.close-ok
    silent_close_delay_ms: int = 1000
    max_unconfirmed_bytes: int = 16 * 1024 * 1024  # past it the connection is not read
    max_output_bytes: int = 1024 * 1024  # past it nothing is delivered until it is taken
    max_collected_bytes: int = 64 * 1024 * 1024  # of incomplete bodies
    blocked_timeout_ms: int = 60_000  # for publishes without confirms
    channel_limits: ChannelLimits = ChannelLimits()

    def server_properties(self) -> FieldTable:
        properties = {
            "product": self.product,
            "version": self.version,
            "platform": self.platform,
            "cluster_name": self.cluster_name,
            "capabilities": CAPABILITIES,
        }
        return as_table(properties)
