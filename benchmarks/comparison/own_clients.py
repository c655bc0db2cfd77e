"""A small fair set for systems of every protocol: each with its own Python client, one log, messages of 1 KB, one server."""

import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from struct import Struct
from typing import Final

from benchmarks.comparison.stages import Effort, Figures, OnRunning, Stage
from benchmarks.peers import Running
from benchmarks.peers.clients import open_client
from benchmarks.peers.process import TreeMeter
from benchmarks.rig import percentiles

_MESSAGE_BYTES: Final = 1_000
_AT_ONCE: Final = 500
_RATE: Final = 1_000  # messages/s that every one of these clients can send
_PATIENCE_S: Final = 60.0
_DUE_NS: Final = Struct(">q")
_BEGIN_AFTER_NS: Final = 500_000_000


def make(system: str, port: int, log: str) -> None:
    client = open_client(system, port, log)
    client.create()
    client.close()


def publish(system: str, port: int, log: str, count: int, at_once: int) -> float:
    """Seconds; the connection is made before, by a message that is not counted."""
    client = open_client(system, port, log)
    value = bytes(33 + i * 7 % 90 for i in range(_MESSAGE_BYTES))
    client.publish([value])
    begun_s = time.monotonic()
    for first in range(0, count, at_once):
        client.publish([value] * min(at_once, count - first))
    elapsed_s = time.monotonic() - begun_s
    client.close()
    return elapsed_s


def consume(system: str, port: int, log: str, count: int) -> float:
    """Seconds from the first to the last message."""
    client = open_client(system, port, log)
    received, begun_s = len(client.receive()), time.monotonic()
    before, end_s = received, begun_s + _PATIENCE_S
    while received < count:
        received += len(client.receive())
        if not before:
            before, begun_s = received, time.monotonic()
        if time.monotonic() > end_s:
            raise TimeoutError(f"{received} of {count} messages in {_PATIENCE_S:.0f} s")
    elapsed_s = time.monotonic() - begun_s
    client.close()
    return elapsed_s * count / max(1, received - before)


def publish_on_schedule(system: str, port: int, log: str, count: int) -> list[float]:
    """Each message says when it was due; how late the load was, for each wake-up."""
    client = open_client(system, port, log)
    padding = bytes(_MESSAGE_BYTES - _DUE_NS.size)
    client.publish([bytes(_MESSAGE_BYTES)])
    begin_ns, interval_ns = time.monotonic_ns() + _BEGIN_AFTER_NS, 1_000_000_000 // _RATE
    sent, late_s = 0, []
    while sent < count:
        wait_ns = begin_ns + sent * interval_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        now_ns = time.monotonic_ns()
        due = min(count, max(sent + 1, 1 + (now_ns - begin_ns) // interval_ns))
        dues_ns = [begin_ns + number * interval_ns for number in range(sent, due)]
        late_s.append((now_ns - dues_ns[0]) / 1e9)
        client.publish([_DUE_NS.pack(due_ns) + padding for due_ns in dues_ns])
        sent = due
    client.close()
    return late_s


def receive_on_schedule(system: str, port: int, log: str, count: int) -> list[float]:
    """How long after it was due each message came."""
    client = open_client(system, port, log)
    waited_s: list[float] = []
    end_s = time.monotonic() + _PATIENCE_S + count / _RATE
    while len(waited_s) < count:
        values = client.receive()
        now_ns = time.monotonic_ns()
        dues_ns = [_DUE_NS.unpack_from(value)[0] for value in values]
        waited_s += [(now_ns - due_ns) / 1e9 for due_ns in dues_ns if due_ns]
        if time.monotonic() > end_s:
            raise TimeoutError(f"{len(waited_s)} of {count} messages came")
    client.close()
    return waited_s


class Run:
    """Two processes, a fresh log, and what the server used meanwhile."""

    def __init__(self, running: Running) -> None:
        self._of = (running.name, running.port, f"bench{time.monotonic_ns()}")
        self._pids = running.pids
        self.processes = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
        self.processes.submit(make, *self._of).result()

    def publish(self, count: int, at_once: int) -> Figures:
        meter = TreeMeter(self._pids)
        seconds = self.processes.submit(publish, *self._of, count, at_once).result()
        return _figures(count, seconds, meter.lap().cpu_s)

    def consume(self, count: int) -> Figures:
        meter = TreeMeter(self._pids)
        seconds = self.processes.submit(consume, *self._of, count).result()
        return _figures(count, seconds, meter.lap().cpu_s)

    def on_schedule(self, count: int) -> Figures:
        receiving: Future[list[float]] = self.processes.submit(
            receive_on_schedule, *self._of, count
        )
        late_s = self.processes.submit(publish_on_schedule, *self._of, count).result()
        warm = count // 5
        points = percentiles(receiving.result()[warm:], 0.5, 0.99, 0.999)
        names = ("p50_ms", "p99_ms", "p999_ms")
        figures = {name: 1000 * point for name, point in zip(names, points, strict=True)}
        return {**figures, "late_ms": 1000 * percentiles(late_s[1:], 0.99)[0]}


def _figures(count: int, seconds: float, cpu_s: float) -> Figures:
    return {
        "messages_s": count / seconds,
        "cpu_s_million": cpu_s / (count / 1e6),
        "share": cpu_s / seconds,
    }


def run(what: str, running: Running, effort: Effort) -> Figures:
    turn = Run(running)
    with turn.processes:
        if what == "each":
            return turn.publish(effort.confirmed, 1)
        if what == "latency":
            return turn.on_schedule(int(_RATE * (1 + effort.seconds)))
        count = effort.messages // 10
        figures = turn.publish(count, _AT_ONCE)
        return turn.consume(count) if what == "consume" else figures


OWN: Final = Stage(
    "own",
    "Each with its own Python client: one log, 1 KB messages",
    [
        OnRunning("publish one at a time, each confirmed", partial(run, "each")),
        OnRunning(f"publish {_AT_ONCE} at a time, all confirmed", partial(run, "many")),
        OnRunning("consume from the start", partial(run, "consume")),
        OnRunning(f"end to end at {_RATE:,} msg/s, open loop", partial(run, "latency")),
    ],
    kafka_only=False,
)
