"""The Python client that users of each system have, behind four calls; imported only in the process that uses it."""

import importlib
from collections.abc import Sequence
from typing import Final, Protocol

from benchmarks.peers.registry import client_library


class Client(Protocol):
    """One connection to one server, and one log on it."""

    def create(self) -> None:
        """Makes the log."""

    def publish(self, values: Sequence[bytes]) -> None:
        """All of them, in one go; returns when each is confirmed."""

    def receive(self) -> list[bytes]:
        """What comes next, from the first message on; empty when nothing came for a moment."""

    def close(self) -> None: ...


NEEDED: Final = {  # module, and the distribution that has it
    "penstock": ("confluent_kafka", "confluent-kafka"),
    "kafka": ("confluent_kafka", "confluent-kafka"),
    "rabbitmq": ("pika", "pika"),
    "nats": ("nats", "nats-py"),
    "redis": ("redis", "redis"),
}
_MODULES: Final = {
    "penstock": "confluent",
    "kafka": "confluent",
    "rabbitmq": "amqp",
    "nats": "jetstream",
    "redis": "streams",
}


def check_client(system: str) -> None:
    """Raises Missing when Python has no client for it."""
    client_library(*NEEDED[system])


def open_client(system: str, port: int, log: str) -> Client:
    module = importlib.import_module(f"benchmarks.peers.clients.{_MODULES[system]}")
    made: Client = module.open_client(port, log)
    return made
