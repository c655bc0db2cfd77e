"""What grows without the data growing: connections, groups, transactions; and readers who are far behind."""

import multiprocessing
import os
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final

import confluent_kafka

from benchmarks.calls import connect, exchange, read_answer
from benchmarks.comparison.kafka_load import RawCase, figures_of, fill
from benchmarks.comparison.stages import Effort, Figures, OnFresh, OnRunning, Stage
from benchmarks.comparison.topics import topic, until
from benchmarks.frames import frame
from benchmarks.peers import Running, System
from benchmarks.peers.process import TreeMeter, resident_mb
from benchmarks.raw import generate
from benchmarks.rig import percentiles
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

CONNECTION_COUNTS: Final = (1, 100, 1_000)
GROUP_COUNTS: Final = (1, 100, 1_000, 10_000)
_MESSAGE_BYTES: Final = 1_000
_PARTITIONS: Final = 16
_TXN_PARTITIONS: Final = 4
_TXN_S: Final = 30.0
_COMMITS_AT_ONCE: Final = 64
_COMMIT_VERSION: Final = 8
_COORDINATOR_VERSION: Final = 3


# Connections -----------------------------------------------------------------------------------


def connections_name(count: int) -> str:
    return f"produce, 1 KB, acks=all, {count:,} connection{'s' if count > 1 else ''}"


def run_connections(count: int, running: Running, effort: Effort) -> Figures:
    """Connections that take turns with the partitions; and what the broker holds while they are there."""
    case = RawCase("produce", _MESSAGE_BYTES, _PARTITIONS, batch_bytes=16 << 10)
    with topic(running, case.partitions) as name:
        plan = case.plan(running, name, effort)._replace(connections=count)
        figures = figures_of(generate(plan), case.mode)
        return {**figures, "load_mb": resident_mb(running.pids)}


# Groups ----------------------------------------------------------------------------------------


def groups_name(count: int) -> str:
    return f"{count:,} group{'s' if count > 1 else ''}"


def run_groups(count: int, system: System, effort: Effort) -> Figures:
    """Offsets of so many groups committed in turn on one connection, again and again; then what the broker weighs."""
    with system.running(1, effort.data) as running, topic(running, 1) as name:
        requests = [_commit(f"group-{number}", name) for number in range(count)]
        with connect(running.port) as sock:
            until(lambda: _is_committed(sock, "group-0", requests[0]), "a coordinator")
            meter, committed = TreeMeter(running.pids), 0
            end_s = time.monotonic() + effort.seconds
            while committed < count or time.monotonic() < end_s:
                some = [requests[(committed + i) % count] for i in range(_COMMITS_AT_ONCE)]
                sock.sendall(b"".join(some))
                for _ in some:
                    _check_commit(read_answer(sock))
                committed += len(some)
            used = meter.lap()
        time.sleep(effort.settle_s)
        return {
            "messages_s": committed / used.wall_s,
            "cpu_s_million": used.cpu_s / (committed / 1e6),
            "share": used.share,
            "idle_mb": resident_mb(running.pids),
        }


def _commit(group: str, name: str) -> bytes:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name=name, partitions=[partition])]
    return frame(OffsetCommitRequest(group_id=group, topics=topics), _COMMIT_VERSION)


def _is_committed(sock: socket.socket, group: str, request: bytes) -> bool:
    """Who asks for the coordinator for the first time has its log made."""
    exchange(sock, frame(FindCoordinatorRequest(key=group), _COORDINATOR_VERSION))
    return _commit_code(exchange(sock, request)) == 0


def _check_commit(reply: bytes) -> None:
    if code := _commit_code(reply):
        raise SystemExit(f"an offset was not committed: code {code}")


def _commit_code(reply: bytes) -> int:
    answer = OffsetCommitResponse.decode(reply[5:], _COMMIT_VERSION)
    return answer.topics[0].partitions[0].error_code


# Transactions ----------------------------------------------------------------------------------


def transact(bootstrap: str, name: str, each: int, count: int) -> tuple[float, list[float]]:
    """Seconds for so many transactions, and for the commit of each."""
    client: Any = confluent_kafka
    producer = client.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"bench-{time.monotonic_ns()}",
            "linger.ms": 1,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(_TXN_S)
    value = bytes(33 + i * 7 % 90 for i in range(_MESSAGE_BYTES))
    commits_s, begun_s = [], time.monotonic()
    for _ in range(count):
        producer.begin_transaction()
        for number in range(each):
            producer.produce(name, value, partition=number % _TXN_PARTITIONS)
        asked_s = time.monotonic()
        producer.commit_transaction(_TXN_S)
        commits_s.append(time.monotonic() - asked_s)
    return time.monotonic() - begun_s, commits_s


def run_transactions(each: int, running: Running, effort: Effort) -> Figures:
    count = max(10, min(effort.confirmed // 4, effort.messages // each))
    with (
        topic(running, _TXN_PARTITIONS) as name,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        process.submit(transact, running.bootstrap, name, each, 2).result()
        meter = TreeMeter(running.pids)
        work = process.submit(transact, running.bootstrap, name, each, count)
        seconds, commits_s = work.result()
        used = meter.lap()
    p50, p99 = percentiles(commits_s, 0.5, 0.99)
    return {
        "messages_s": count * each / seconds,
        "cpu_s_million": used.cpu_s / (count * each / 1e6),
        "acked_p50_ms": p50 * 1000,
        "acked_p99_ms": p99 * 1000,
        "share": used.share,
    }


# Far behind ------------------------------------------------------------------------------------


def run_catch_up(running: Running, effort: Effort) -> Figures:
    """Consumers read from the start what memory does not hold, while producers go on at the end of the same partitions."""
    case = RawCase("in and out", _MESSAGE_BYTES, _TXN_PARTITIONS)
    with topic(running, case.partitions) as name:
        plan = case.plan(running, name, effort)._replace(warmup_s=0.0)
        fill(plan, effort.recovered_bytes)
        _forget(running, name)
        outcome = generate(plan)
    return {
        **figures_of(outcome, "consume"),
        "produced_s": outcome.produced_messages / outcome.seconds,
    }


def _forget(running: Running, name: str) -> None:
    """The kernel drops the pages of the topic's files, all of them written."""
    os.sync()
    for path in running.data_dir().glob(f"{name}*/*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


CONNECTIONS: Final = Stage(
    "connections",
    "Connections: raw load on 16 partitions, and memory meanwhile",
    [OnRunning(connections_name(it), partial(run_connections, it)) for it in CONNECTION_COUNTS],
)
GROUPS: Final = Stage(
    "groups",
    "Groups: offsets committed by one client (messages are commits), and memory after it",
    [OnFresh(groups_name(it), partial(run_groups, it)) for it in GROUP_COUNTS],
    servers=0,
)
TRANSACTIONS: Final = Stage(
    "transactions",
    "Transactions by librdkafka, 1 KB, 4 partitions (acknowledged: commits)",
    [
        OnRunning(
            f"{each:,} message{'s' if each > 1 else ''} each", partial(run_transactions, each)
        )
        for each in (1, 100, 10_000)
    ],
)
COLD: Final = Stage(
    "cold",
    "Far behind: 1 KB messages read from disk while others are produced",
    [OnRunning("consume cold, 1 KB, 4 partitions", run_catch_up)],
)
