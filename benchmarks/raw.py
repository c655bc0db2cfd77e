"""A raw load generator: requests built beforehand, written as fast as the broker takes them.

One process drives some connections with a window of requests in flight each. It checks every answer
for errors, and reads only the headers of fetched batches, so that the broker is the bottleneck, not
the generator. Run by the benchmarks beside it, never on its own.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.header import RequestHeader, encode_request_header
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_INT: Final = Struct(">i")
_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 11
_CLIENT_ID: Final = "raw"
_RECEIVE_BYTES: Final = 4 << 20
_BATCH: Final = Struct(">qi")  # base offset, length


@dataclass(slots=True)
class Counted:
    requests: int = 0
    messages: int = 0
    record_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)


def batch_of(message_bytes: int, batch_bytes: int, now_ms: int) -> tuple[bytes, int]:
    """A batch of about `batch_bytes` with messages of `message_bytes`, and how many it has."""
    count = max(1, batch_bytes // (message_bytes + 8))
    value = bytes(33 + i * 7 % 90 for i in range(message_bytes))
    records = [Record(i, now_ms, None, value, ()) for i in range(count)]
    return bytes(build_batch(records)), count


def frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    header = encode_request_header(RequestHeader(api_key, version, correlation_id, _CLIENT_ID))
    return _INT.pack(len(header) + len(body)) + header + body


def produce_frame(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))],
            )
        ],
    )
    return frame(0, _PRODUCE_VERSION, 1, request.encode(_PRODUCE_VERSION))


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
    )
    return frame(1, _FETCH_VERSION, 1, request.encode(_FETCH_VERSION))


class Producer:
    """One connection that keeps `window` requests in flight."""

    def __init__(self, sock: socket.socket, request: bytes, messages: int, window: int) -> None:
        self.socket = sock
        self._messages = messages
        self._record_bytes = len(request)
        self._window = window
        self._request = memoryview(request)
        self._sent = 0  # bytes of the current request
        self._in_flight = 0
        self._started: list[float] = []
        self._received = bytearray()
        self.counted = Counted()

    def on_event(self, now: float) -> None:
        self._receive(now)
        self._send(now)

    def _send(self, now: float) -> None:
        try:
            while self._in_flight < self._window or self._sent:
                if not self._sent:
                    self._in_flight += 1
                    self._started.append(now)
                self._sent += self.socket.send(self._request[self._sent :])
                if self._sent == len(self._request):
                    self._sent = 0
        except BlockingIOError:
            if not self._sent:
                self._in_flight -= 1
                self._started.pop()

    def _receive(self, now: float) -> None:
        try:
            self._received += self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        position = 0
        while len(self._received) - position >= 4:
            size = _INT.unpack_from(self._received, position)[0] + 4
            if len(self._received) - position < size:
                break
            if not self.counted.requests:
                self._check(bytes(self._received[position + 4 : position + size]))
            position += size
            self._in_flight -= 1
            self.counted.requests += 1
            self.counted.messages += self._messages
            self.counted.record_bytes += self._record_bytes
            self.counted.latencies_s.append(now - self._started.pop(0))
        del self._received[:position]

    def _check(self, reply: bytes) -> None:
        response = ProduceResponse.decode(memoryview(reply)[5:], _PRODUCE_VERSION)
        for topic in response.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    raise SystemExit(f"produce failed: {partition.error_message}")


class Consumer:
    """One connection that fetches one partition from its start, as fast as it can."""

    def __init__(self, sock: socket.socket, topic: str, partition: int, max_bytes: int) -> None:
        self.socket = sock
        self._topic = topic
        self._partition = partition
        self._max_bytes = max_bytes
        self._offset = 0
        self._buffer = bytearray(max_bytes + _RECEIVE_BYTES)
        self._filled = 0
        self._head_bytes = 8 + 14 + 2 + len(topic) + 4  # up to the partition's answer
        self._asked = 0.0
        self.counted = Counted()

    def begin(self, now: float) -> None:
        self._asked = now
        self.socket.sendall(
            fetch_frame(self._topic, self._partition, self._offset, self._max_bytes)
        )

    def on_event(self, now: float) -> None:
        try:
            with memoryview(self._buffer) as view:
                self._filled += self.socket.recv_into(view[self._filled :])
        except BlockingIOError:
            return
        if self._filled >= 4 and self._filled >= _INT.unpack_from(self._buffer)[0] + 4:
            self._take()
            self.counted.latencies_s.append(now - self._asked)
            self._filled = 0
            self.begin(now)

    def _take(self) -> None:
        at = self._head_bytes
        error = int.from_bytes(self._buffer[at + 4 : at + 6], "big")
        if error:
            raise SystemExit(f"fetch failed: code {error} at offset {self._offset}")
        position = at + 42
        end = position + _INT.unpack_from(self._buffer, at + 38)[0]
        self.counted.requests += 1
        self.counted.record_bytes += end - position
        while position < end:
            base_offset, length = _BATCH.unpack_from(self._buffer, position)
            last = base_offset + _INT.unpack_from(self._buffer, position + 23)[0]
            self.counted.messages += last + 1 - max(base_offset, self._offset)
            self._offset = last + 1
            position += length + 12


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def drive(clients: list[Producer] | list[Consumer], seconds: float) -> float:
    """Run the clients for a while; how long it really took."""
    selector = selectors.DefaultSelector()
    for client in clients:
        mask = selectors.EVENT_READ
        if isinstance(client, Producer):
            mask |= selectors.EVENT_WRITE
        selector.register(client.socket, mask, client)
    started = time.perf_counter()
    for client in clients:
        if isinstance(client, Consumer):
            client.begin(started)
        else:
            client.on_event(started)
            selector.modify(client.socket, selectors.EVENT_READ, client)
    now = started
    while now - started < seconds:
        for key, _ in selector.select(0.1):
            key.data.on_event(time.perf_counter())
        now = time.perf_counter()
    return now - started


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan["mode"] == "produce":
        batch, messages = batch_of(plan["message_bytes"], plan["batch_bytes"], plan["now_ms"])
        clients: list[Producer] | list[Consumer] = [
            Producer(
                connect(plan["port"]),
                produce_frame(plan["topic"], partition, batch, plan["acks"]),
                messages,
                plan["window"],
            )
            for partition in plan["partitions"]
        ]
    else:
        clients = [
            Consumer(connect(plan["port"]), plan["topic"], partition, plan["fetch_bytes"])
            for partition in plan["partitions"]
        ]
    elapsed_s = drive(clients, plan["seconds"])
    latencies = sorted(latency for client in clients for latency in client.counted.latencies_s)
    print(
        json.dumps(
            {
                "seconds": elapsed_s,
                "requests": sum(client.counted.requests for client in clients),
                "messages": sum(client.counted.messages for client in clients),
                "record_bytes": sum(client.counted.record_bytes for client in clients),
                "p50_ms": latencies[len(latencies) // 2] * 1000 if latencies else 0,
                "p99_ms": latencies[len(latencies) * 99 // 100] * 1000 if latencies else 0,
            }
        )
    )


if __name__ == "__main__":
    main()
