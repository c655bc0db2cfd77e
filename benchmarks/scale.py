"""How long a cluster of three brokers is without something after one of them dies: `make bench B=failover`.

A broker is killed with -9 while many partitions are led by it; counted is the time until every one of them has another
leader in the metadata that both others give to clients. Also: how long a change takes to reach all brokers, how long a
restart with many partitions takes, and what they weigh.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin

from benchmarks.rig import parser, print_heading, print_machine, print_row, rss_mb
from penstock.client.connection import Address, Connection, parse_address
from penstock.model.errors import BrokerError
from penstock.testing import Broker
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)

_admin: Any = confluent_kafka.admin  # its stubs hide half of its names
_BROKERS: Final = 3
_PATIENCE_S: Final = 600.0
_TOPIC_PARTITIONS: Final = 1000


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--partitions", type=int, default=10_000, help="of the cluster, RF 3")
    arguments = options.parse_args()
    print_machine()
    print_heading("partitions", "what", "took", "bound")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.data) as home:
        brokers = [_broker(Path(home), number) for number in range(1, _BROKERS + 1)]
        try:
            _measure(brokers, arguments.partitions)
        finally:
            for broker in brokers:
                if broker.is_running:
                    broker.kill()


def _broker(home: Path, number: int) -> Broker:
    return Broker(
        {
            "broker.id": number,
            "penstock.metadata": f"sqlite:{home / 'metadata.sqlite'}",
            "broker.session.timeout.ms": 2000,
            "penstock.partitions.per.broker.max": 1_000_000,
        },
        subprocess=True,
        data_dir=home / f"broker-{number}",
    )


def _measure(brokers: list[Broker], partitions: int) -> None:
    for broker in brokers:
        broker.start()
    _until(lambda: all(len(_metadata(it).brokers) == _BROKERS for it in brokers))
    idle_mb = [rss_mb(broker.pid) for broker in brokers]
    admin = _admin.AdminClient({"bootstrap.servers": brokers[0].bootstrap})
    begun_s = time.monotonic()
    count = _create(admin, partitions)
    print_row(f"{count:,}", "created", f"{time.monotonic() - begun_s:.1f} s", "")
    took_s = _until(lambda: all(_led(it) >= count for it in brokers))
    print_row(f"{count:,}", "known to all brokers, after that", f"{took_s:.2f} s", "")
    admin.create_topics([_admin.NewTopic("latecomer", 1, _BROKERS)])["latecomer"].result()
    took_s = _until(lambda: all(_led(it) > count for it in brokers))
    print_row(f"{count:,}", "one more topic known to all", f"{took_s:.2f} s", "1 s")
    weights = [rss_mb(broker.pid) - idle for broker, idle in zip(brokers, idle_mb, strict=True)]
    text = f"{max(weights):.0f} MB, {max(weights) * 1e6 / count:.0f} B a partition"
    print_row(f"{count:,}", "memory of a broker", text, "")
    for victim in (2, 0):
        _kill_and_restart(brokers, victim, count)


def _kill_and_restart(brokers: list[Broker], victim: int, count: int) -> None:
    others = [broker for broker in brokers if broker is not brokers[victim]]
    brokers[victim].kill()
    took_s = _until(lambda: all(_led(it, without=victim + 1) > count for it in others))
    print_row(f"{count:,}", f"led again after kill -9 of {victim + 1}", f"{took_s:.2f} s", "5 s")
    begun_s = time.monotonic()
    brokers[victim].start()
    print_row(f"{count:,}", "restart", f"{time.monotonic() - begun_s:.2f} s", "30 s")
    took_s = _until(lambda: all(_in_sync(it) > count for it in brokers))
    print_row(f"{count:,}", "all in sync, after that", f"{took_s:.2f} s", "")


def _create(admin: Any, partitions: int) -> int:
    count = max(1, partitions // _TOPIC_PARTITIONS)
    size = partitions // count
    for number in range(count):
        name = f"bench-{number}"
        new = _admin.NewTopic(name, size, _BROKERS)
        admin.create_topics([new], operation_timeout=120, request_timeout=120)[name].result()
    return count * size


def _metadata(broker: Broker) -> MetadataResponse:
    """What this very broker tells clients."""
    return asyncio.run(_ask(parse_address(broker.bootstrap)))


async def _ask(address: Address) -> MetadataResponse:
    connection = await Connection.open(address, client_id="bench", timeout_ms=30_000)
    try:
        request = MetadataRequest(topics=None)
        return await connection.request(request, MetadataResponse, timeout_ms=30_000)
    finally:
        await connection.close()


def _partitions(broker: Broker) -> list[MetadataResponsePartition]:
    return [it for topic in _metadata(broker).topics for it in topic.partitions]


def _led(broker: Broker, without: int = -1) -> int:
    return sum(1 for it in _partitions(broker) if it.leader_id not in (-1, without))


def _in_sync(broker: Broker) -> int:
    return sum(1 for it in _partitions(broker) if len(it.isr_nodes) == _BROKERS)


def _until(condition: Callable[[], bool]) -> float:
    """How many seconds until it holds; what cannot be asked does not hold yet."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + _PATIENCE_S:
        with contextlib.suppress(BrokerError):
            if condition():
                return time.monotonic() - begun_s
        time.sleep(0.02)
    raise SystemExit("the cluster did not get there")


if __name__ == "__main__":
    main()
