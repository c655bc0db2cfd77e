"""A raw load generator: requests built beforehand, written as fast as the broker takes them.

One process drives all connections, each with a window of requests in flight. Every answer is checked for errors; of
fetched records most are counted and thrown away unread, and some are checked batch by batch, so that the broker is the
bottleneck and not the generator. Run by the benchmarks beside it, never on its own.
"""

import json
import math
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from benchmarks.calls import connect, end_offsets, init_producer_id
from benchmarks.frames import (
    PRODUCE_VERSION,
    Block,
    FetchFrame,
    batch_of,
    messages_in,
    produce_frame,
)
from benchmarks.rig import LOAD_CORES, CpuMeter, Used, on_cores, touch_memory
from penstock.records.batch import iter_headers
from penstock.records.compression import Codec
from penstock.wire.messages.produce import ProduceResponse

_INT: Final = Struct(">i")
_BLOCK_BYTES: Final = 128 << 10
_REPLIES_BYTES: Final = 64 << 10
_CHECKED_EVERY: Final = 64  # fetches
_WARMUP_PART: Final = 4  # of all bytes, at most one in so many
_TOUCHED_MAX_BYTES: Final = 4_000_000_000
_LAG_MAX_BYTES: Final = 64 << 20  # producers wait for consumers that are further behind


class Plan(NamedTuple):
    """What to do to which broker; a connection for each partition and each of producing and consuming.

    Who only consumes reads what is there, again and again.
    """

    port: int
    broker_pid: int
    topic: str
    partitions: int
    message_bytes: int
    batch_bytes: int
    now_ms: int
    window: int = 8
    acks: int = -1
    consume: bool = False
    idempotent: bool = False
    warmup_s: float = 0.5
    seconds: float = 5.0
    max_bytes: int = 3_000_000_000
    fetch_bytes: int = 1 << 20
    produce: bool = True
    codec: str = "none"
    other_pids: Sequence[int] = ()  # of the broker's followers
    connections: int = 0  # of producers, who take turns with the partitions; 0: one for each

    @property
    def messages(self) -> int:
        return messages_in(self.batch_bytes, self.message_bytes)


class Outcome(NamedTuple):
    """What was done between the warm-up and the end, and what it cost."""

    seconds: float
    broker_cpu_s: float
    load_cpu_s: float
    produced_requests: int
    produced_messages: int
    produced_bytes: int
    fetched_requests: int
    fetched_messages: int
    fetched_bytes: int
    others_cpu_s: float = 0.0

    @property
    def broker(self) -> Used:
        return Used(self.broker_cpu_s, self.seconds)

    def __sub__(self, before: "Outcome") -> "Outcome":
        return Outcome._make(mine - other for mine, other in zip(self, before, strict=True))


class Flow:
    """Keeps producers from running away from consumers: what is measured is in and out at once."""

    def __init__(self, *, has_consumers: bool) -> None:
        self._has_consumers = has_consumers
        self.sent_bytes = 0
        self.fetched_bytes = 0

    @property
    def is_open(self) -> bool:
        return not self._has_consumers or self.sent_bytes - self.fetched_bytes < _LAG_MAX_BYTES


class Producer:
    """One connection that keeps up to `window` requests in flight."""

    def __init__(
        self,
        sock: socket.socket,
        block: Block,
        window: int,
        topic: str,
        flow: Flow,
        *,
        is_answered: bool = True,
    ) -> None:
        self.socket = sock
        self.requests = 0  # acknowledged
        self.block = block
        self._flow = flow
        self._window = max(window, block.requests)
        self._is_answered = is_answered
        self._in_flight = 0
        self._unsent = memoryview(b"")
        self._replies = bytearray(_REPLIES_BYTES)
        self._filled = 0
        self._reply_bytes = 0  # until the first one has come
        self._error_at = 16 + len(topic)
        assert len(topic) < 127, "its length is one byte"

    def send(self) -> bool:
        """Whether the socket takes no more. Without answers, the window is what one call sends."""
        if not self._is_answered:
            self._in_flight = 0
        try:
            while self._may_send():
                if not self._unsent:
                    self._unsent = self.block.renew()
                    self._in_flight += self.block.requests
                    self._flow.sent_bytes += self.block.requests * self.block.batch_bytes
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return True
        return False

    def _may_send(self) -> bool:
        if self._unsent:
            return True
        return self._in_flight + self.block.requests <= self._window and self._flow.is_open

    def receive(self) -> None:
        with memoryview(self._replies) as view:
            received = self.socket.recv_into(view[self._filled :])
        if not received:
            raise SystemExit("the broker closed a producer's connection")
        self._filled += received
        if not self._reply_bytes and not self._learn():
            return
        size = self._reply_bytes
        count = self._filled // size
        end = count * size
        self._check(end)
        self._replies[: self._filled - end] = self._replies[end : self._filled]
        self._filled -= end
        self._in_flight -= count
        self.requests += count

    def _learn(self) -> bool:
        """All good answers are of one size; the first one says which."""
        if self._filled < 4 or self._filled < (size := _INT.unpack_from(self._replies)[0] + 4):
            return False
        reply = bytes(self._replies[4:size])
        response = ProduceResponse.decode(reply[5:], PRODUCE_VERSION)
        partition = response.responses[0].partition_responses[0]
        if partition.error_code:
            raise SystemExit(f"produce failed: {partition.error_message}")
        self._reply_bytes = size
        return True

    def _check(self, end: int) -> None:
        """Each answer's length and code, without a loop."""
        size, replies = self._reply_bytes, self._replies
        lengths = replies[3:end:size]
        codes = replies[self._error_at : end : size] + replies[self._error_at + 1 : end : size]
        if lengths.count(size - 4) != len(lengths) or any(codes):
            raise SystemExit(f"produce failed: {bytes(replies[:end])[:200]!r}")


class Consumer:
    """One connection that fetches one partition from its start, as fast as it can; at `end_offset` it begins again."""

    def __init__(
        self,
        sock: socket.socket,
        plan: Plan,
        partition: int,
        batch_bytes: int,
        flow: Flow,
        end_offset: float = math.inf,
    ) -> None:
        self.socket = sock
        self.requests = 0
        self.messages = 0
        self.record_bytes = 0
        self._flow = flow
        self._offset = 0
        self._end_offset = end_offset
        self._batch_bytes = batch_bytes
        self._batch_messages = plan.messages
        self._request = FetchFrame(plan.topic, partition, plan.fetch_bytes)
        self._head = bytearray(8 + 14 + 2 + len(plan.topic) + 4 + 42)
        self._records = memoryview(bytearray(plan.fetch_bytes + batch_bytes))
        self._filled = 0  # of the head
        self._size = 0  # of the records of this answer
        self._left = 0  # of them, still to come

    def ask(self) -> None:
        self.socket.sendall(self._request.at(self._offset))
        self._filled = 0

    def receive(self) -> None:
        if self._filled < len(self._head):
            self._fill_head()
        else:
            self._take(self._left)
        if self._filled == len(self._head) and not self._left:
            self._finish()

    def _fill_head(self) -> None:
        with memoryview(self._head) as view:
            received = self.socket.recv_into(view[self._filled :])
        if not received:
            raise SystemExit("the broker closed a consumer's connection")
        self._filled += received
        if self._filled < len(self._head):
            return
        error = int.from_bytes(self._head[-38:-36], "big")
        self._size = self._left = _INT.unpack_from(self._head, len(self._head) - 4)[0]
        if error or 0 < self._size < self._batch_bytes:
            raise SystemExit(f"fetch at {self._offset}: code {error}, {self._size} bytes")

    def _take(self, limit: int) -> None:
        """The kernel drops the bytes for us (MSG_TRUNC), but for those answers that are checked."""
        at = self._size - self._left
        flags = 0 if self._is_checked else socket.MSG_TRUNC
        self._left -= self.socket.recv_into(self._records[at:], limit, flags)

    @property
    def _is_checked(self) -> bool:
        return self.requests % _CHECKED_EVERY == 0

    def _finish(self) -> None:
        expected = self._offset
        if self._is_checked:
            for _, header in iter_headers(self._records[: self._size]):
                if header.base_offset != expected:
                    raise SystemExit(f"offset {header.base_offset} came; {expected} was next")
                expected = header.next_offset
        batches = self._size // self._batch_bytes  # Kafka may cut the last one short
        self.requests += 1
        self.messages += batches * self._batch_messages
        self.record_bytes += batches * self._batch_bytes
        self._flow.fetched_bytes += batches * self._batch_bytes
        self._offset += batches * self._batch_messages
        if self._offset >= self._end_offset:
            self._offset = 0
        self.ask()


class Generator:
    """All connections of a plan, in one loop."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._flow = Flow(has_consumers=plan.consume)
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, Consumer] = {}
        self._blocked: set[int] = set()
        self._epoll = select.epoll()
        self._inquirer = connect(plan.port)
        end_offsets = [math.inf] * plan.partitions
        if not plan.produce:
            end_offsets = list(map(float, self._end_offsets()))
        for number in range(plan.connections or plan.partitions):
            partition = number % plan.partitions
            self._connect(partition, end_offsets[partition])

    def _connect(self, partition: int, end_offset: float) -> None:
        plan = self._plan
        sock = connect(plan.port)
        batch = _first_batch(plan, sock)
        if plan.produce:
            request = produce_frame(plan.topic, partition, batch, plan.acks)
            repeat = max(1, min(plan.window // 2, _BLOCK_BYTES // len(request)))
            block = Block(request, batch, repeat, plan.messages)
            self._producers[sock.fileno()] = Producer(
                sock, block, plan.window, plan.topic, self._flow, is_answered=plan.acks != 0
            )
        if plan.consume:
            mine = connect(plan.port)
            self._consumers[mine.fileno()] = Consumer(
                mine, plan, partition, len(batch), self._flow, end_offset
            )

    def _end_offsets(self) -> list[int]:
        return end_offsets(self._inquirer, self._plan.topic, self._plan.partitions)

    def run(self) -> Outcome:
        clients: list[Producer | Consumer] = [*self._producers.values(), *self._consumers.values()]
        for client in clients:
            client.socket.setblocking(False)
            self._epoll.register(client.socket.fileno(), select.EPOLLIN)
        for consumer in self._consumers.values():
            consumer.ask()
        meter = CpuMeter(self._plan.broker_pid)
        others = [CpuMeter(pid) for pid in self._plan.other_pids]
        self._drive_for(self._plan.warmup_s, self._plan.max_bytes // _WARMUP_PART)
        meter.lap()
        for other in others:
            other.lap()
        before = self._count(Used(0, 0), ())
        self._drive_for(self._plan.seconds, self._plan.max_bytes)
        return self._count(meter.lap(), [other.lap() for other in others]) - before

    def _drive_for(self, seconds: float, max_bytes: int) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and self._flow.sent_bytes < max_bytes:
            for fd, events in self._epoll.poll(self._patience_s()):
                if events & select.EPOLLIN:
                    (self._producers.get(fd) or self._consumers[fd]).receive()
                if events & select.EPOLLOUT:
                    self._blocked.discard(fd)
                    self._epoll.modify(fd, select.EPOLLIN)
            for fd, producer in self._producers.items():
                if fd not in self._blocked and producer.send():
                    self._blocked.add(fd)
                    self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def _patience_s(self) -> float:
        """Who gets no answers has only its sockets to wait for."""
        waits = self._plan.acks != 0 or len(self._blocked) == len(self._producers)
        return 0.1 if waits else 0.0

    def _stored_requests(self) -> int:
        """Acknowledged ones; of those that get no answer, what has reached the log."""
        if self._plan.acks != 0 or not self._plan.produce:
            return sum(producer.requests for producer in self._producers.values())
        return sum(self._end_offsets()) // self._plan.messages

    def _count(self, broker: Used, others: Sequence[Used]) -> Outcome:
        consumers = self._consumers.values()
        requests = self._stored_requests()
        batch_bytes = next((it.block.batch_bytes for it in self._producers.values()), 0)
        return Outcome(
            broker.wall_s,
            broker.cpu_s,
            time.process_time(),
            requests,
            requests * self._plan.messages,
            requests * batch_bytes,
            sum(consumer.requests for consumer in consumers),
            sum(consumer.messages for consumer in consumers),
            sum(consumer.record_bytes for consumer in consumers),
            sum(other.cpu_s for other in others),
        )


def _first_batch(plan: Plan, sock: socket.socket) -> bytes:
    codec = Codec[plan.codec.upper()]
    if not plan.idempotent:
        return batch_of(plan.message_bytes, plan.messages, plan.now_ms, codec=codec)
    return batch_of(
        plan.message_bytes,
        plan.messages,
        plan.now_ms,
        producer_id=init_producer_id(sock),
        base_sequence=0,
        codec=codec,
    )


def generate(plan: Plan) -> Outcome:
    """Run a plan in a process of its own, off the broker's core."""
    if plan.produce:
        touch_memory(min(plan.max_bytes * 4 // 3, _TOUCHED_MAX_BYTES))
    with on_cores(LOAD_CORES):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.raw", json.dumps(plan)],
            capture_output=True,
            cwd=Path(__file__).parent.parent,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"the load failed: {done.stderr.decode(errors='replace').strip()}")
    return Outcome(*json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(Generator(Plan(*json.loads(sys.argv[1]))).run()))
