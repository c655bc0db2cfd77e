"""Consumer groups and offsets: `make bench B=groups`.

Members are raw protocol clients, one connection each, that send heartbeats at the intervals of real ones: a member of a
classic group hears of a rebalance with its next heartbeat, at most 3 s later. Rates are of one broker on one core; "bound
by" says whether the broker or the load set the pace.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import aiokafka
import confluent_kafka

from benchmarks.frames import frame
from benchmarks.group_clients import (
    PATIENCE_MS,
    SESSION_MS,
    ClassicMember,
    ConsumerMember,
    Progress,
    blast,
    connect,
)
from benchmarks.rig import (
    CpuMeter,
    parser,
    port_of,
    print_heading,
    print_machine,
    print_row,
    rss_mb,
    running_broker,
    start,
)
from penstock.client.connection import Connection
from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from penstock.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

MEMBERS: Final = 1000
GROUPS: Final = 10_000
REPLAYED: Final = 1_000_000
REPLAYED_PARTITIONS: Final = 1000
_CONNECTIONS: Final = 50
_SIZE: Final = Struct(">i")
_NAMED_FETCH: Final = 12  # the last version that has topics by name
_UNPINNED_JOIN: Final = 3  # the last version that gives out no member id first


def verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


# A large group -----------------------------------------------------------------------------------


async def large_group(
    broker: Broker, kind: type[ClassicMember] | type[ConsumerMember]
) -> tuple[float, float, float]:
    """Seconds until all members are in, until all are after one left, and CPU seconds of it all."""
    name = kind.__name__
    progress = Progress(MEMBERS, f"wide-{name}", MEMBERS)
    connections = [await connect(broker.bootstrap) for _ in range(MEMBERS)]
    await _find(connections[0], name)
    members = [kind(number, name, progress) for number in range(MEMBERS)]
    meter, begun_s = CpuMeter(broker.pid), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        lives = [
            tasks.create_task(member.live(connection))
            for member, connection in zip(members, connections, strict=True)
        ]
        await progress.until(MEMBERS)
        formed_s = time.monotonic() - begun_s
        lives[-1].cancel()
        await asyncio.wait([lives[-1]])
        begun_s = time.monotonic()
        await members[-1].leave(connections[-1])
        del progress.at[MEMBERS - 1]
        await _rebalanced(progress, kind)
        rebalanced_s = time.monotonic() - begun_s
        for life in lives:
            life.cancel()
    used = meter.lap()
    for connection in connections:
        await connection.close()
    return formed_s, rebalanced_s, used.cpu_s


async def _rebalanced(progress: Progress, kind: type[ClassicMember] | type[ConsumerMember]) -> None:
    """Classic: everyone is in a later generation. Consumer: someone has the partition that was left."""
    if kind is ClassicMember:
        old = next(iter(progress.at.values()))
        while any(generation == old for generation in progress.at.values()):
            progress.changed.clear()
            await progress.changed.wait()
        await progress.until(MEMBERS - 1)
    else:
        while sum(progress.at.values()) < progress.partitions:
            progress.changed.clear()
            await progress.changed.wait()


async def _find(connection: Connection, group: str) -> None:
    await connection.request(
        FindCoordinatorRequest(coordinator_keys=[group]),
        FindCoordinatorResponse,
        timeout_ms=PATIENCE_MS,
    )


def report_large_groups(data: str | None) -> None:
    print_heading("protocol", "1,000 members join", "< 10 s", "one leaves", "< 5 s", "broker CPU s")
    for kind in (ClassicMember, ConsumerMember):
        with running_broker({"max.connections.per.ip": 5000}, data=data) as broker:
            broker.create_topic(f"wide-{kind.__name__}", partitions=MEMBERS)
            formed_s, rebalanced_s, cpu_s = asyncio.run(large_group(broker, kind))
            print_row(
                kind.__name__.removesuffix("Member").lower(),
                f"{formed_s:.1f} s",
                verdict(formed_s < 10),
                f"{rebalanced_s:.1f} s",
                verdict(rebalanced_s < 5),
                f"{cpu_s:.1f}",
            )


# Many groups, heartbeats, commits ----------------------------------------------------------------


async def form_groups(broker: Broker, count: int) -> list[tuple[str, str]]:
    """Groups of one member each, over a few connections; their names and members."""
    connections = [await connect(broker.bootstrap) for _ in range(_CONNECTIONS)]
    await _find(connections[0], "g-0")
    formed: list[tuple[str, str]] = []

    async def form(connection: Connection, numbers: range) -> None:
        for number in numbers:
            name = f"g-{number}"
            formed.append((name, await _form_one(connection, name)))

    async with asyncio.TaskGroup() as tasks:
        for place, connection in enumerate(connections):
            tasks.create_task(form(connection, range(place, count, _CONNECTIONS)))
    for connection in connections:
        await connection.close()
    return formed


async def _form_one(connection: Connection, group: str) -> str:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(10))],
    )
    joined = await connection.request(
        request, JoinGroupResponse, timeout_ms=PATIENCE_MS, at_most=_UNPINNED_JOIN
    )
    given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"work")]
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=given,
    )
    synced = await connection.request(sync, SyncGroupResponse, timeout_ms=PATIENCE_MS)
    assert not synced.error_code, ErrorCode(synced.error_code).name
    return joined.member_id


def heartbeat_frame(group: str, member: str) -> bytes:
    return frame(HeartbeatRequest(group_id=group, generation_id=1, member_id=member), 4)


def commit_frame(group: str, member: str, topic: str) -> bytes:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=12_345)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=1,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    return frame(request, 8)


def answer_size(port: int, request: bytes) -> int:
    """How many bytes one answer has; they all have as many."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(request)
        head = sock.recv(4, socket.MSG_WAITALL)
        body = sock.recv(_SIZE.unpack(head)[0], socket.MSG_WAITALL)
        assert not any(body[-4:-1]), f"refused: {body!r}"
        return 4 + len(body)


def report_many_groups(data: str | None, seconds: float) -> None:
    settings = {"max.connections.per.ip": 5000}
    with running_broker(settings, data=data) as broker:
        broker.create_topic("t", partitions=1)
        before_mb, begun_s = rss_mb(broker.pid), time.monotonic()
        formed = asyncio.run(form_groups(broker, GROUPS))
        elapsed_s = time.monotonic() - begun_s
        size_kb = (rss_mb(broker.pid) - before_mb) * 1000 / GROUPS
        print(
            f"\n{GROUPS:,} groups with a member each: formed in {elapsed_s:.1f} s, "
            f"{size_kb:.1f} KB of memory each\n"
        )
        print_heading(
            "request", "in flight", "per second", "≥ 20,000", "CPU µs", "broker CPU", "bound by"
        )
        port = port_of(broker)
        chosen = formed[:: GROUPS // _CONNECTIONS][:_CONNECTIONS]
        kinds: list[tuple[str, Callable[[str, str], bytes]]] = [
            ("Heartbeat", heartbeat_frame),
            ("OffsetCommit, one partition", lambda g, m: commit_frame(g, m, "t")),
        ]
        for name, build in kinds:
            frames = [build(group, member) for group, member in chosen]
            size = answer_size(port, frames[0])
            for window in (1, 10):
                rate, used = blast(
                    port, frames, size, window=window, seconds=seconds, pid=broker.pid
                )
                print_row(
                    name,
                    window * len(frames),
                    f"{rate:,.0f}",
                    verdict(rate >= 20_000),
                    f"{used.share / rate * 1e6:.1f}",
                    f"{used.share:.0%}",
                    used.bound,
                )


# Replay ------------------------------------------------------------------------------------------


async def commit_many(broker: Broker, count: int) -> None:
    """One record for each partition and round."""
    connection = await connect(broker.bootstrap)
    await _find(connection, "replayed")
    for offset in range(count // REPLAYED_PARTITIONS):
        partitions = [
            OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            for number in range(REPLAYED_PARTITIONS)
        ]
        request = OffsetCommitRequest(
            group_id="replayed",
            topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
        )
        answer = await connection.request(request, OffsetCommitResponse, timeout_ms=PATIENCE_MS)
        codes = {p.error_code for topic in answer.topics for p in topic.partitions}
        assert codes == {0}, codes
    await connection.close()


async def until_loaded(broker: Broker, count: int) -> float:
    begun_s = time.monotonic()
    connection = await connect(broker.bootstrap)
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[REPLAYED_PARTITIONS - 1])]
    groups = [OffsetFetchRequestGroup(group_id="replayed", topics=topics)]
    while True:
        answer = await connection.request(
            OffsetFetchRequest(groups=groups), OffsetFetchResponse, timeout_ms=PATIENCE_MS
        )
        if not answer.groups[0].error_code:
            break
        await asyncio.sleep(0.02)
    elapsed_s = time.monotonic() - begun_s
    last_offset = count // REPLAYED_PARTITIONS - 1
    assert answer.groups[0].topics[0].partitions[0].committed_offset == last_offset
    await connection.close()
    return elapsed_s


async def fetch_first(connection: Connection, group: str, topic: str) -> None:
    """Where the group is, and the message that is there."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
    found = await connection.request(
        OffsetFetchRequest(groups=groups), OffsetFetchResponse, timeout_ms=PATIENCE_MS
    )
    assert found.groups[0].topics[0].partitions[0].committed_offset == -1
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    answer = await connection.request(
        request, FetchResponse, timeout_ms=PATIENCE_MS, at_most=_NAMED_FETCH
    )
    assert answer.responses[0].partitions[0].records


def report_replay(data: str | None) -> None:
    with running_broker(data=data) as broker:
        broker.create_topic("t", partitions=REPLAYED_PARTITIONS)
        asyncio.run(commit_many(broker, REPLAYED))
        broker.stop()
        start(broker)
        meter = CpuMeter(broker.pid)
        elapsed_s = asyncio.run(until_loaded(broker, REPLAYED))
        used = meter.lap()
        print(
            f"\nreplay of {REPLAYED:,} offset records: {elapsed_s:.1f} s "
            f"({verdict(elapsed_s < 10)}: < 10 s), {used.cpu_s:.1f} s of CPU, "
            f"{rss_mb(broker.pid):.0f} MB resident\n"
        )


# The first message -------------------------------------------------------------------------------


def with_librdkafka(broker: Broker, protocol: str, group: str) -> float:
    """From the consumer's creation to its first message."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    begun_s = time.monotonic()
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["first"])
    message = None
    while message is None:
        message = consumer.poll(1)
    assert message.error() is None, message.error()
    elapsed_s = time.monotonic() - begun_s
    consumer.close()
    return elapsed_s


def with_aiokafka(broker: Broker, _: str, group: str) -> float:
    async def read() -> float:
        begun_s = time.monotonic()
        consumer = aiokafka.AIOKafkaConsumer(
            "first",
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        await consumer.getone()
        elapsed_s = time.monotonic() - begun_s
        await consumer.stop()
        return elapsed_s

    return asyncio.run(read())


def with_raw_client(broker: Broker, _: str, group: str) -> float:
    """What the broker's part is: every request that a member needs, one after the other."""

    async def read() -> float:
        begun_s = time.monotonic()
        connection = await connect(broker.bootstrap)
        await _find(connection, group)
        await _form_one(connection, group)
        await fetch_first(connection, group, "first")
        elapsed_s = time.monotonic() - begun_s
        await connection.close()
        return elapsed_s

    return asyncio.run(read())


FIRST: Final[tuple[tuple[str, str, Callable[[Broker, str, str], float]], ...]] = (
    ("raw client", "classic", with_raw_client),
    ("aiokafka", "classic", with_aiokafka),
    ("librdkafka", "classic", with_librdkafka),
    ("librdkafka", "consumer", with_librdkafka),
)


def report_first_message(data: str | None, runs: int) -> None:
    print_heading("client", "protocol", "group", "median", "worst", "≤ 150 ms")
    for client, protocol, measure in FIRST:
        fresh, later = [], []
        for run in range(runs):
            with running_broker(data=data) as broker:
                broker.create_topic("first", partitions=1)
                settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
                producer = confluent_kafka.Producer(settings)
                producer.produce("first", b"hello")
                assert producer.flush(30) == 0
                fresh.append(measure(broker, protocol, f"first-{run}"))
                later.append(measure(broker, protocol, f"second-{run}"))
        for name, times in (("the broker's first", fresh), ("a later one", later)):
            median_ms, worst_ms = statistics.median(times) * 1000, max(times) * 1000
            print_row(
                client,
                protocol,
                name,
                f"{median_ms:.0f} ms",
                f"{worst_ms:.0f} ms",
                verdict(median_ms <= 150),
            )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of load for each rate")
    options.add_argument("--runs", type=int, default=5, help="brokers started for first messages")
    options.add_argument("--only", choices=("large", "many", "replay", "first"))
    arguments = options.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "large": lambda: report_large_groups(arguments.data),
        "many": lambda: report_many_groups(arguments.data, arguments.seconds),
        "replay": lambda: report_replay(arguments.data),
        "first": lambda: report_first_message(arguments.data, arguments.runs),
    }
    print_machine()
    for name, report in parts.items():
        if arguments.only in (None, name):
            report()


if __name__ == "__main__":
    main()
