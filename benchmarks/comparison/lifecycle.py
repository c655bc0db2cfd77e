"""What happens to a broker around its work: it starts, holds memory, gets topics, is killed and comes back."""

import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.calls import connect, exchange
from benchmarks.comparison.kafka_load import RawCase, fill
from benchmarks.comparison.stages import Effort, Figures, OnFresh, Stage
from benchmarks.comparison.topics import create_many, topic
from benchmarks.frames import PRODUCE_VERSION, batch_of, frame, produce_frame
from benchmarks.peers import Running, System
from benchmarks.peers.process import Server, peak_resident_mb, resident_mb
from benchmarks.raw import generate
from benchmarks.rig import BROKER_CORES
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.produce import ProduceResponse

_FIRST: Final = "first"
_PATIENCE_S: Final = 300.0
_LOOK_AGAIN_S: Final = 0.005
_ANSWER_S: Final = 30.0
_METADATA_VERSION: Final = 9
_RECOVERED_PARTITIONS: Final = 4
_MANY_PARTITIONS: Final = 1_000


def start_up(system: System, effort: Effort) -> Figures:
    """From the start of the process to the acknowledgement of a message; then its memory, once it is quiet."""
    with system.home(1, effort.data) as home:
        server = system.launch(home, 1, BROKER_CORES)
        try:
            await_acknowledged(server, system.ports[0], [(_FIRST, 0)], create=True)
            seconds = time.monotonic() - server.started_s
            time.sleep(effort.settle_s)
            return {"seconds": seconds, "idle_mb": resident_mb(server.pids)}
        finally:
            server.kill()


def await_acknowledged(
    server: Server, port: int, partitions: Sequence[tuple[str, int]], *, create: bool = False
) -> None:
    """Until each of the partitions has taken a small batch, from a broker that may not even listen yet."""
    batch = batch_of(100, 1, time.time_ns() // 1_000_000)
    end_s = time.monotonic() + _PATIENCE_S
    left = list(partitions)
    while left:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{len(left)} partitions took nothing in {_PATIENCE_S:.0f} s")
        server.check_alive()
        try:
            with connect(port) as sock:
                sock.settimeout(_ANSWER_S)
                left = [it for it in left if not _is_taken(sock, *it, batch, create=create)]
        except OSError:
            pass
        if left:
            time.sleep(_LOOK_AGAIN_S)


def _is_taken(
    sock: socket.socket, name: str, partition: int, batch: bytes, *, create: bool
) -> bool:
    if create:
        asked = [MetadataRequestTopic(name=name)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
        exchange(sock, frame(request, _METADATA_VERSION))
    reply = exchange(sock, produce_frame(name, partition, batch))
    answer = ProduceResponse.decode(reply[5:], PRODUCE_VERSION)
    return answer.responses[0].partition_responses[0].error_code == 0


def memory_under_load(system: System, effort: Effort) -> Figures:
    """1 KB messages in and out of 16 partitions; the most that the process ever held."""
    case = RawCase("in and out", 1_000, 16)
    with system.running(1, effort.data) as running, topic(running, case.partitions) as name:
        generate(case.plan(running, name, effort))
        return {"load_mb": peak_resident_mb(running.pids)}


def recovery(partitions: int, size_bytes: int, system: System, effort: Effort) -> Figures:
    """Data is written, the broker killed with SIGKILL and started again: until every partition takes a message."""
    case = RawCase("produce", 1_000, partitions)
    with system.running(1, effort.data) as running, topic(running, partitions) as name:
        everything = [(name, index) for index in range(partitions)]
        if size_bytes:
            fill(case.plan(running, name, effort), size_bytes)
        else:
            await_acknowledged(running.servers[0], running.port, everything)
        return {"seconds": _served_again(running, everything)}


def _served_again(running: Running, partitions: Sequence[tuple[str, int]]) -> float:
    running.servers[0].kill()
    running.start_again()
    server = running.servers[0]
    await_acknowledged(server, running.port, partitions)
    return time.monotonic() - server.started_s


def recovery_of_bytes(system: System, effort: Effort) -> Figures:
    return recovery(_RECOVERED_PARTITIONS, effort.recovered_bytes, system, effort)


def recovery_of_many(system: System, effort: Effort) -> Figures:
    return recovery(_MANY_PARTITIONS if not effort.is_quick else 100, 0, system, effort)


def create_topics(count: int, system: System, effort: Effort) -> Figures:
    """One partition each, and what the broker weighs then."""
    with system.running(1, effort.data) as running:
        seconds = create_many(running, count)
        time.sleep(effort.settle_s)
        return {"seconds": seconds, "idle_mb": resident_mb(running.pids)}


START: Final = Stage(
    "start",
    "Start-up to the first acknowledged message, and memory after it",
    [OnFresh("empty data directory", start_up)],
    servers=0,
)
MEMORY: Final = Stage(
    "memory",
    "Memory under load",
    [OnFresh("in and out, 1 KB, 16 partitions", memory_under_load)],
    servers=0,
)
RECOVERY: Final = Stage(
    "recovery",
    "After kill -9: until every partition takes messages again",
    [
        OnFresh("large logs, 4 partitions", recovery_of_bytes),
        OnFresh("small logs, many partitions", recovery_of_many),
    ],
    servers=0,
)


def topics_name(count: int) -> str:
    return f"{count:,} topics"


def topics_stage(most: int) -> Stage:
    """A tenth of them, too: what each costs must not grow with their number."""
    workloads = [OnFresh(topics_name(it), partial(create_topics, it)) for it in (most // 10, most)]
    return Stage("topics", "Topics of one partition created by one client", workloads, servers=0)
