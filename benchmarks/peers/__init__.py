"""Penstock and its peers: each is got from a package registry, started on free ports of the loopback address, and stopped."""

from typing import Final

from benchmarks.peers.base import Running, System
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.penstock import Penstock
from benchmarks.peers.rabbitmq import RabbitMq
from benchmarks.peers.redis import Redis
from benchmarks.peers.registry import Missing

OURS: Final = Penstock.name
SYSTEMS: Final[dict[str, type[System]]] = {
    system.name: system for system in (Penstock, Kafka, RabbitMq, Nats, Redis)
}

__all__ = ["OURS", "SYSTEMS", "Missing", "Running", "System"]
