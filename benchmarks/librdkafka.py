"""What a real client gets out of the broker, and what that costs the broker: `make bench B=librdkafka`.

confluent-kafka (librdkafka in C, the calls in Python), idempotent, acks=all. The client sets the pace; the broker's
CPU time per gigabyte says what it would do for more of them.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, NamedTuple

import confluent_kafka

from benchmarks.rig import (
    CpuMeter,
    Used,
    parser,
    print_heading,
    print_machine,
    print_row,
    running_broker,
    topic,
)
from penstock.testing import Broker

_PARTITIONS: Final = 4
_PATIENCE_S: Final = 60.0
_AT_ONCE: Final = 1_000


class Case(NamedTuple):
    message_bytes: int
    messages: int
    codec: str = "none"


CASES: Final = (
    Case(100, 2_000_000),
    Case(100, 2_000_000, "lz4"),
    Case(1000, 500_000),
)


def produce(bootstrap: str, name: str, case: Case) -> float:
    """Seconds from the first message to the last acknowledgement."""
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 10,
            "batch.size": 262_144,
            "compression.type": case.codec,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    value = bytes(33 + i * 7 % 90 for i in range(case.message_bytes))
    started_s = time.monotonic()
    for first in range(0, case.messages, _AT_ONCE):
        partition = first // _AT_ONCE % _PARTITIONS
        for _ in range(min(_AT_ONCE, case.messages - first)):
            while True:
                try:
                    producer.produce(name, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    unsent = producer.flush(_PATIENCE_S)
    if unsent or failures:
        raise SystemExit(f"{unsent} unsent, {len(failures)} failed: {failures[:1]}")
    return time.monotonic() - started_s


def consume(bootstrap: str, name: str, case: Case) -> float:
    """Seconds from assignment to the last message."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,  # of small messages its queue is soon full; else it sleeps a second then
        }
    )
    started_s = time.monotonic()
    consumer.assign([confluent_kafka.TopicPartition(name, i, 0) for i in range(_PARTITIONS)])
    received = 0
    while received < case.messages:
        messages = consumer.consume(10_000, timeout=1.0)
        if time.monotonic() - started_s > _PATIENCE_S:
            raise SystemExit(f"{received} of {case.messages} messages after {_PATIENCE_S:.0f} s")
        for message in messages:
            if message.error():
                raise SystemExit(f"consume failed: {message.error()}")
        received += len(messages)
    elapsed_s = time.monotonic() - started_s
    consumer.close()
    return elapsed_s


def report(what: str, case: Case, seconds: float, used: Used) -> None:
    gigabytes = case.messages * case.message_bytes / 1e9
    share = used.cpu_s / seconds
    print_row(
        what,
        f"{case.message_bytes} B",
        case.codec,
        f"{case.messages / seconds:,.0f}",
        f"{1000 * gigabytes / seconds:,.0f}",
        f"{share:.0%}",
        Used(used.cpu_s, seconds).bound,
        f"{used.cpu_s / gigabytes:.2f}",
        f"{case.messages / seconds / share / 1e6:.1f} M",
    )


def run(broker: Broker, case: Case) -> None:
    with (
        topic(broker, _PARTITIONS) as name,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        meter = CpuMeter(broker.pid)
        for what, work in (("produce", produce), ("consume", consume)):
            seconds = process.submit(work, broker.bootstrap, name, case).result()
            report(what, case, seconds, meter.lap())


def main() -> None:
    arguments = parser(__doc__).parse_args()
    print_machine()
    print_heading(
        "what",
        "message",
        "codec",
        "msg/s",
        "MB/s",
        "broker CPU",
        "bound by",
        "broker CPU s/GB",
        "msg/s at 100 %",
    )
    with running_broker(data=arguments.data) as broker:
        for case in CASES:
            run(broker, case)


if __name__ == "__main__":
    main()
