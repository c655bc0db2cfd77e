"""What our client costs over the ones below and beside it: `make bench B=sdk`.

Messages a second of `send` and of iteration, each client in a process of its own, one broker, one run; then `run` with 8
workers against a handler that sleeps 1 ms. Ratios are taken of the best of several rounds, because machines are shared.
"""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, NamedTuple

from benchmarks.rig import parser, print_heading, print_machine, print_row, running_broker, topic
from penstock.testing import Broker

_PARTITIONS: Final = 4
_MESSAGE: Final = bytes(33 + i * 7 % 90 for i in range(100))
_PATIENCE_S: Final = 120.0
_WORKERS: Final = 8
_HANDLER_S: Final = 0.001


class Measured(NamedTuple):
    per_s: float
    cpu_us: float  # of the client's process, a message


def _timed(work: Callable[[], int]) -> Measured:
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    count = work()
    elapsed_s = time.monotonic() - started_s
    return Measured(count / elapsed_s, (time.process_time() - started_cpu_s) / count * 1e6)


# producing ----------------------------------------------------------------------------------------


def send_ours(bootstrap: str, name: str, count: int) -> Measured:
    from penstock import Producer

    with Producer(bootstrap) as producer:
        producer.partition_count(name)

        def work() -> int:
            for _ in range(count):
                producer.send(name, _MESSAGE)
            producer.flush(_PATIENCE_S)
            return producer.metrics.delivered

        return _timed(work)


def send_confluent(bootstrap: str, name: str, count: int) -> Measured:
    """As its manual says: a delivery callback for each message, and a poll after it."""
    import confluent_kafka

    delivered = [0]

    def on_delivery(error: Any, _: Any) -> None:
        assert error is None, error
        delivered[0] += 1

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    )
    producer.list_topics(name)

    def work() -> int:
        for _ in range(count):
            while True:
                try:
                    producer.produce(name, _MESSAGE, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        producer.flush(_PATIENCE_S)
        return delivered[0]

    return _timed(work)


def send_kafka_python(bootstrap: str, name: str, count: int) -> Measured:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, acks="all")
    producer.partitions_for(name)

    def work() -> int:
        for _ in range(count):
            producer.send(name, _MESSAGE)
        producer.flush()
        return count

    measured = _timed(work)
    producer.close()
    return measured


def send_aiokafka(bootstrap: str, name: str, count: int) -> Measured:
    import asyncio

    from aiokafka import AIOKafkaProducer

    async def main() -> Measured:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, linger_ms=5, acks="all"
        ) as producer:
            started_s, started_cpu_s = time.monotonic(), time.process_time()
            for _ in range(count):
                await producer.send(name, _MESSAGE)
            await producer.flush()
            elapsed_s = time.monotonic() - started_s
            return Measured(count / elapsed_s, (time.process_time() - started_cpu_s) / count * 1e6)

    return asyncio.run(main())


# consuming ----------------------------------------------------------------------------------------


def read_ours(bootstrap: str, name: str, count: int) -> Measured:
    from penstock import Consumer

    with Consumer(bootstrap, name, group_id=f"ours-{time.monotonic_ns()}") as consumer:
        consumer.await_assignment()

        def work() -> int:
            seen = 0
            for message in consumer:
                assert message.value
                seen += 1
                if seen == count:
                    break
            return seen

        return _timed(work)


def read_confluent(bootstrap: str, name: str, count: int) -> Measured:
    """As its manual says: poll, look for an error, take the value."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"raw-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 20,  # as ours: with the default of 1000 it mostly waits
        }
    )
    consumer.subscribe([name])
    while not consumer.assignment():
        consumer.poll(0.1)

    def work() -> int:
        seen = 1
        while seen < count:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            assert message.value()
            seen += 1
        return seen

    measured = _timed(work)
    consumer.close()
    return measured


def read_kafka_python(bootstrap: str, name: str, count: int) -> Measured:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=f"python-{time.monotonic_ns()}",
        auto_offset_reset="earliest",
    )
    next(consumer)

    def work() -> int:
        for seen, message in enumerate(consumer, start=2):
            assert message.value
            if seen == count:
                break
        return count

    measured = _timed(work)
    consumer.close()
    return measured


def read_aiokafka(bootstrap: str, name: str, count: int) -> Measured:
    import asyncio

    from aiokafka import AIOKafkaConsumer

    async def main() -> Measured:
        async with AIOKafkaConsumer(
            name,
            bootstrap_servers=bootstrap,
            group_id=f"aio-{time.monotonic_ns()}",
            auto_offset_reset="earliest",
        ) as consumer:
            await consumer.getone()
            started_s, started_cpu_s = time.monotonic(), time.process_time()
            seen = 1
            async for message in consumer:
                assert message.value
                seen += 1
                if seen == count:
                    break
            elapsed_s = time.monotonic() - started_s
            return Measured(count / elapsed_s, (time.process_time() - started_cpu_s) / count * 1e6)

    return asyncio.run(main())


# running ------------------------------------------------------------------------------------------


def run_workers(bootstrap: str, name: str, count: int) -> Measured:
    from penstock import Consumer

    with Consumer(bootstrap, name, group_id=f"run-{time.monotonic_ns()}") as consumer:
        consumer.await_assignment()
        seen = [0] * _WORKERS

        def handle(message: Any) -> None:
            time.sleep(_HANDLER_S)
            seen[message.offset % _WORKERS] += 1
            if sum(seen) >= count:
                consumer.stop()

        return _timed(lambda: consumer.run(handle, workers=_WORKERS, order="none").handled)


Client = Callable[[str, str, int], Measured]
CLIENTS: Final[dict[str, tuple[Client, Client]]] = {
    "penstock": (send_ours, read_ours),
    "confluent-kafka": (send_confluent, read_confluent),
    "kafka-python": (send_kafka_python, read_kafka_python),
    "aiokafka": (send_aiokafka, read_aiokafka),
}


def best(broker: Broker, name: str, work: Client, count: int, rounds: int) -> Measured:
    results = []
    for _ in range(rounds):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            results.append(process.submit(work, broker.bootstrap, name, count).result())
    return Measured(max(one.per_s for one in results), min(one.cpu_us for one in results))


def compare(broker: Broker, which: int, what: str, counts: dict[str, int], rounds: int) -> None:
    with topic(broker, _PARTITIONS) as name:
        if which == 1:
            send_confluent(broker.bootstrap, name, max(counts.values()))
        measured = {
            client: best(broker, name, works[which], counts[client], rounds)
            for client, works in CLIENTS.items()
        }
    ours = measured["penstock"]
    for client, one in measured.items():
        print_row(
            what,
            client,
            f"{one.per_s:,.0f}",
            f"{one.cpu_us:.2f}",
            f"{ours.per_s / one.per_s:.2f}",
            f"{one.cpu_us / ours.cpu_us:.2f}",
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--messages", type=int, default=300_000)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    slower = max(1, chosen.messages // 10)
    counts = {
        "penstock": chosen.messages,
        "confluent-kafka": chosen.messages,
        "kafka-python": slower,
        "aiokafka": slower,
    }
    print_machine()
    print_heading("what", "client", "msg/s", "client CPU µs/msg", "ours ÷ it", "its CPU ÷ ours")
    with running_broker(data=chosen.data) as broker:
        compare(broker, 0, "send", counts, chosen.rounds)
        compare(broker, 1, "iterate", counts, chosen.rounds)
        with topic(broker, _PARTITIONS) as name:
            send_confluent(broker.bootstrap, name, 40_000)
            one = best(broker, name, run_workers, 20_000, 1)
            ideal = _WORKERS / _HANDLER_S
            print_row(
                "run, 8 workers, 1 ms each",
                "penstock",
                f"{one.per_s:,.0f}",
                f"{one.cpu_us:.2f}",
                f"{one.per_s / ideal:.2f} of {ideal:,.0f}",
                "",
            )


if __name__ == "__main__":
    main()
