"""Topics on any system that speaks Kafka's protocol, made and deleted by the same client."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka.admin

from benchmarks.calls import connect, end_offsets
from benchmarks.peers import Running

_admin: Any = confluent_kafka.admin  # its stubs hide half of its names
_PATIENCE_S: Final = 120.0
_LOOK_AGAIN_S: Final = 0.05
_CREATED_AT_ONCE: Final = 200
_SETTINGS: Final = {"max.message.bytes": "20000000", "file.delete.delay.ms": "0"}


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not in {_PATIENCE_S:.0f} s: {what}")
        time.sleep(_LOOK_AGAIN_S)


def admin_of(running: Running) -> Any:
    return _admin.AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})


@contextmanager
def topic(
    running: Running, partitions: int, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A topic that takes large messages, with a replica on every server and the first one leading; left, its files go."""
    admin = admin_of(running)
    name = f"bench-{time.monotonic_ns()}"
    replicas = list(range(1, len(running.servers) + 1))
    new = _admin.NewTopic(
        name,
        partitions,
        replica_assignment=[replicas] * partitions,
        config={**_SETTINGS, **(settings or {})},
    )
    until(lambda: len(admin.list_topics(timeout=10).brokers) == len(replicas), "all servers")
    admin.create_topics([new])[name].result()
    until(lambda: _is_in_sync(admin, name, partitions, len(replicas)), f"{name} in sync")
    until(lambda: _is_led(running, name, partitions), f"{name} led by the first server")
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result()
        for number in replicas:
            until(lambda it=number: not any(running.data_dir(it).glob(f"{name}*")), "files gone")  # type: ignore[misc]  # bound per turn


def _is_in_sync(admin: Any, name: str, partitions: int, replicas: int) -> bool:
    found = admin.list_topics(name, timeout=10).topics[name].partitions
    return len(found) == partitions and all(len(it.isrs) == replicas for it in found.values())


def _is_led(running: Running, name: str, partitions: int) -> bool:
    """Kafka tells of leaders before they know it themselves."""
    with connect(running.port) as sock:
        try:
            end_offsets(sock, name, partitions)
        except SystemExit:
            return False
    return True


def create_many(running: Running, count: int) -> float:
    """Seconds until that many topics of one partition are made and listed."""
    admin = admin_of(running)
    names = [f"many-{number}" for number in range(count)]
    begun_s = time.monotonic()
    for first in range(0, count, _CREATED_AT_ONCE):
        some = names[first : first + _CREATED_AT_ONCE]
        made = admin.create_topics([_admin.NewTopic(name, 1, 1) for name in some])
        for future in made.values():
            future.result()
    until(lambda: len(admin.list_topics(timeout=30).topics) >= count, f"{count} topics listed")
    return time.monotonic() - begun_s
