"""How long a message takes, to its acknowledgement and to its reader: `make bench B=latency`.

Open loop: every send has its time on a schedule, and latency counts from there, sent late or not, so that a slow broker
cannot slow down the clock it is measured by. Raw clients send what a client with that linger would send, and their
figures begin when the batch is due; those of librdkafka begin with each message and hold its linger. Load and broker
have one core each: "late" is how far the load fell behind its own schedule (p99), which its figures include.
"""

import gc
import multiprocessing
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from struct import Struct
from typing import Any, Final, NamedTuple

import confluent_kafka

from benchmarks.calls import connect
from benchmarks.frames import FETCH_VERSION, batch_of, fetch_request, frame, produce_frame
from benchmarks.rig import (
    CpuMeter,
    Used,
    parser,
    percentiles,
    port_of,
    print_heading,
    print_machine,
    print_row,
    running_broker,
    topic,
)
from penstock.records.batch import iter_headers
from penstock.testing import Broker
from penstock.wire.framing import FrameDecoder
from penstock.wire.messages.fetch import FetchResponse

_MESSAGE_BYTES: Final = 1000
_PARTITIONS: Final = 4
_WARMUP_S: Final = 1.0
_DRAIN_S: Final = 60.0  # after the last send; longer is a loss
_FETCH_BYTES: Final = 4 << 20
_MAX_FRAME_BYTES: Final = 64 << 20
_ERROR_AT: Final = 16  # and the length of the topic: of the code in a produce answer
_SAMPLED_EVERY: Final = 10  # messages, for acknowledgements in librdkafka
_DUE_NS: Final = Struct(">q")


class Case(NamedTuple):
    client: str
    messages_s: int
    linger_ms: float


CASES: Final = tuple(
    Case(client, messages_s, linger_ms)
    for client in ("raw", "librdkafka")
    for messages_s in (20_000, 50_000)
    for linger_ms in (1, 5)
)


class Latencies(NamedTuple):
    acknowledged_s: list[float]
    delivered_s: list[float]
    late_s: list[float]


class RawLoad:
    """One producer connection and one consumer connection for all partitions, as a client has them."""

    def __init__(
        self, port: int, name: str, case: Case, seconds: float, partitions: int = _PARTITIONS
    ) -> None:
        self._topic = name
        self._partitions = partitions
        per_batch = case.messages_s * case.linger_ms / 1000 / partitions
        self._batch_messages = max(1, round(per_batch))
        self._interval_s = self._batch_messages / case.messages_s
        batch = batch_of(_MESSAGE_BYTES, self._batch_messages, time.time_ns() // 1_000_000)
        self._requests = [produce_frame(name, index, batch) for index in range(partitions)]
        self._count = int((_WARMUP_S + seconds) / self._interval_s)
        self._warm = int(_WARMUP_S / self._interval_s)
        self._producer, self._consumer = connect(port), connect(port)
        self._unsent = bytearray()
        self._answers, self._fetched = (
            FrameDecoder(_MAX_FRAME_BYTES),
            FrameDecoder(_MAX_FRAME_BYTES),
        )
        self._offsets = dict.fromkeys(range(partitions), 0)
        self._begin_s = 0.0
        self._acknowledged = self._delivered = 0
        self._latencies = Latencies([], [], [])

    def run(self) -> Latencies:
        for sock in (self._producer, self._consumer):
            sock.setblocking(False)
        self._ask()
        self._begin_s = time.monotonic() + 0.1
        sent = 0
        end_s = self._due_s(self._count) + _DRAIN_S
        while min(self._acknowledged, self._delivered) < self._count:
            now_s = time.monotonic()
            if now_s > end_s:
                raise SystemExit(f"{self._delivered} of {self._count} batches were delivered")
            while sent < self._count and self._due_s(sent) <= now_s:
                self._latencies.late_s.append(now_s - self._due_s(sent))
                self._unsent += self._requests[sent % self._partitions]
                sent += 1
            self._turn(self._due_s(sent) - now_s if sent < self._count else 0.1)
        return Latencies(*(values[self._warm :] for values in self._latencies))

    def _due_s(self, number: int) -> float:
        return self._begin_s + number * self._interval_s

    def _turn(self, patience_s: float) -> None:
        self._send()
        writers = [self._producer] if self._unsent else []
        ready, _, _ = select.select([self._producer, self._consumer], writers, [], patience_s)
        if self._producer in ready:
            self._receive(self._producer, self._answers, self._on_acknowledged)
        if self._consumer in ready:
            self._receive(self._consumer, self._fetched, self._on_fetched)

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._producer.send(self._unsent)]
        except BlockingIOError:
            pass

    def _receive(
        self, sock: socket.socket, frames: FrameDecoder, take: Callable[[bytes, float], None]
    ) -> None:
        data = sock.recv(1 << 20)
        if not data:
            raise SystemExit("the broker closed a connection")
        now_s = time.monotonic()
        for answer in frames.feed(data):
            take(answer, now_s)

    def _on_acknowledged(self, answer: bytes, now_s: float) -> None:
        code_at = _ERROR_AT - 4 + len(self._topic)
        if any(answer[code_at : code_at + 2]):
            raise SystemExit(f"produce failed: {answer!r}")
        self._latencies.acknowledged_s.append(now_s - self._due_s(self._acknowledged))
        self._acknowledged += 1

    def _on_fetched(self, answer: bytes, now_s: float) -> None:
        response = FetchResponse.decode(memoryview(answer)[4:], FETCH_VERSION)
        for partition in response.responses[0].partitions if response.responses else ():
            if partition.error_code:
                raise SystemExit(f"fetch failed: code {partition.error_code}")
            records = partition.records or b""
            assert not isinstance(records, list), "it was decoded"
            for _, header in iter_headers(memoryview(records)):
                number = header.base_offset // self._batch_messages * self._partitions
                due_s = self._due_s(number + partition.partition_index)
                self._latencies.delivered_s.append(now_s - due_s)
                self._delivered += 1
                self._offsets[partition.partition_index] = header.next_offset
        self._ask()

    def _ask(self) -> None:
        request = fetch_request(self._topic, self._offsets, _FETCH_BYTES)
        self._consumer.sendall(frame(request, FETCH_VERSION))


def librdkafka_produce(
    bootstrap: str, name: str, case: Case, begin_ns: int, count: int
) -> tuple[list[float], list[float]]:
    """Acknowledgement latencies of some messages, and how late each wake-up of this loop was."""
    acknowledged: list[float] = []
    late: list[float] = []

    def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"produce failed: {error}")
        acknowledged.append((time.monotonic_ns() - _DUE_NS.unpack_from(message.value())[0]) / 1e9)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": case.linger_ms,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    padding = bytes(_MESSAGE_BYTES - _DUE_NS.size)
    interval_ns = 1_000_000_000 / case.messages_s
    sent = 0
    while sent < count:
        now_ns = time.monotonic_ns()
        due = min(count, int((now_ns - begin_ns) / interval_ns))
        if sent < due:
            late.append((now_ns - begin_ns - sent * interval_ns) / 1e9)
        for number in range(sent, due):
            value = _DUE_NS.pack(begin_ns + int(number * interval_ns)) + padding
            producer.produce(
                name,
                value,
                partition=number // 16 % _PARTITIONS,
                on_delivery=delivered if number % _SAMPLED_EVERY == 0 else None,
            )
        sent = max(sent, due)
        producer.poll(0.0005)
    producer.flush(30)
    return acknowledged, late


def librdkafka_consume(bootstrap: str, name: str, count: int, patience_s: float) -> list[float]:
    """End-to-end latencies of all messages, in the order of their arrival."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, i, 0) for i in range(_PARTITIONS)])
    delivered: list[float] = []
    end_s = time.monotonic() + patience_s
    while len(delivered) < count and time.monotonic() < end_s:
        message = consumer.poll(0.1)
        if message is not None:
            if message.error():
                raise SystemExit(f"consume failed: {message.error()}")
            due_ns = _DUE_NS.unpack_from(message.value() or b"")[0]
            delivered.append((time.monotonic_ns() - due_ns) / 1e9)
    consumer.close()
    return delivered


def librdkafka_run(broker: Broker, name: str, case: Case, seconds: float) -> Latencies:
    count = int((_WARMUP_S + seconds) * case.messages_s)
    warm = int(_WARMUP_S * case.messages_s)
    begin_ns = time.monotonic_ns() + 1_500_000_000  # after both processes have started
    patience_s = _WARMUP_S + seconds + 30
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        consuming = processes.submit(librdkafka_consume, broker.bootstrap, name, count, patience_s)
        producing = processes.submit(
            librdkafka_produce, broker.bootstrap, name, case, begin_ns, count
        )
        (acknowledged, late), delivered = producing.result(), consuming.result()
    if len(delivered) < count:
        raise SystemExit(f"{len(delivered)} of {count} messages were delivered")
    return Latencies(acknowledged[warm // _SAMPLED_EVERY :], delivered[warm:], late)


class Run(NamedTuple):
    latencies: Latencies
    used: Used

    @property
    def late_s(self) -> float:
        return percentiles(self.latencies.late_s, 0.99)[0]


def run(broker: Broker, case: Case, seconds: float) -> Run:
    with topic(broker, _PARTITIONS) as name:
        meter = CpuMeter(broker.pid)
        if case.client == "raw":
            latencies = RawLoad(port_of(broker), name, case, seconds).run()
        else:
            latencies = librdkafka_run(broker, name, case, seconds)
        return Run(latencies, meter.lap())


def report(case: Case, chosen: Run) -> None:
    print_row(
        case.client,
        f"{case.messages_s:,}",
        f"{case.linger_ms:g} ms",
        *(_figures(values) for values in chosen.latencies[:2]),
        f"{chosen.late_s * 1000:.2f}",
        f"{chosen.used.share:.0%}",
    )


def _figures(seconds: list[float]) -> str:
    points = percentiles(seconds, 0.5, 0.99, 0.999, 1.0)
    return " / ".join(f"{point * 1000:.2f}" for point in points)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="of load for each row")
    options.add_argument(
        "--least-late-of",
        type=int,
        default=1,
        metavar="N",
        help="runs for each row; that one counts in which the load kept its schedule best",
    )
    arguments = options.parse_args()
    gc.disable()
    print_machine()
    print_heading(
        "client",
        "msg/s of 1 KB",
        "linger",
        "acknowledged, ms: p50 / p99 / p99.9 / max",
        "end to end, ms: p50 / p99 / p99.9 / max",
        "late, ms",
        "broker CPU",
    )
    with running_broker(data=arguments.data) as broker:
        for case in CASES:
            runs = [run(broker, case, arguments.seconds) for _ in range(arguments.least_late_of)]
            report(case, min(runs, key=lambda it: it.late_s))


if __name__ == "__main__":
    main()
