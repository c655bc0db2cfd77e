import asyncio
import errno
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
import uvloop

from penstock.broker.controller.cluster import Cluster
from penstock.broker.controller.election import ControllerElection
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.maintenance.housekeeping import Housekeeping
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.http.server import HttpServer
from penstock.kafka.handlers import write_txn_markers
from penstock.kafka.server import Listener
from penstock.metadata.sqlite.store import SqliteStore
from penstock.model.errors import BrokerError, DiskFull, OutOfResources, StorageFault
from penstock.node import node as node_module
from penstock.node.clock import SystemClock
from penstock.node.gauges import Gauges
from penstock.node.logs import structure
from penstock.node.node import Node
from penstock.node.settings import load_settings
from penstock.storage.directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.flush import FlushTicket
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.telemetry.registry import SampledFamily
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.wire.schema import Message
from tests.support.raw_client import RawClient, encode_request
from tests.unit.storage.logs import batch, scratch

ANY_PORT = "127.0.0.1:0"
PATIENCE_S = 20.0  # only a test that fails waits so long


class Failure(Exception):
    """What a test makes happen."""


@pytest.fixture
def home() -> Iterator[Path]:
    with scratch() as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No thread, no descriptor, no child outlives its broker."""
    run(asyncio.sleep(0))  # libuv opens two for the whole process
    gc.collect()
    before = resources()
    yield
    gc.collect()
    assert resources() - before == set()  # what earlier tests left behind may go meanwhile


def resources() -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate()}
    children = {f"child {child.pid}" for child in psutil.Process().children()}
    return threads | children | set(descriptors())


def descriptors() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one by which they are listed
            yield f"descriptor {number} {os.readlink(f'/proc/self/fd/{number}')}"


def new_node(home: Path, **options: object) -> Node:
    given = {
        "log.dirs": home / "data",
        "listeners": ANY_PORT,
        "penstock.http": ANY_PORT,
        "broker.session.timeout.ms": 60_000,
    } | {name.replace("_", "."): value for name, value in options.items()}
    return Node(load_settings(options=[f"{name}={value}" for name, value in given.items()]))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


async def serve(node: Node, visit: Callable[[], object] | None = None) -> None:
    """Start, let a client visit, and stop."""
    await node.start()
    try:
        if visit is not None:
            await asyncio.to_thread(visit)
    finally:
        await node.stop()


def is_free(home: Path) -> bool:
    """Whether another broker could use the directory."""
    try:
        DataDirectory(str(home / "data")).abandon()
    except StorageFault:
        return False
    return True


def ending(home: Path) -> Ending:
    """How the last run is seen by the next one."""
    directory = DataDirectory(str(home / "data"))
    found = directory.ending
    directory.close()
    return found


def last_epoch(home: Path) -> int | None:
    """The session that the last run wrote down."""
    directory = DataDirectory(str(home / "data"))
    found = directory.last_run.broker_epoch
    directory.abandon()
    return found


def produce(client: RawClient, topic: str, index: int = 0) -> None:
    client.send(produce_request(topic, index), 9)
    client.receive()


def produce_request(topic: str, index: int = 0) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=batch(b"value", time_ms=now_ms()))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=600_000, topic_data=topics)


def now_ms() -> int:
    return SystemClock().wall_ms()


# A life ----------------------------------------------------------------------------------------


def test_a_broker_starts_serves_and_stops_and_starts_again(home: Path) -> None:
    for number in range(3):
        node = new_node(home)

        def visit(node: Node = node, number: int = number) -> None:
            with RawClient(node.bootstrap) as client:
                produce(client, "orders" if number else "absent")
                asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
                (topic,) = client.ask(asked, MetadataResponse, 9).topics
                assert topic.error_code == 0

        assert ending(home) is Ending.CLEAN
        run(serve(node, visit))
    assert ending(home) is Ending.CLEAN


def test_it_says_where_it_listens(home: Path) -> None:
    node = new_node(home, listeners=f"{ANY_PORT},second={ANY_PORT}")
    lines = []

    def visit() -> None:
        lines.append(node.ready_line)
        for address in node.ready_line.split("listen=")[1].split(" ")[0].split(","):
            with RawClient(address) as client:
                assert client.is_served()

    run(serve(node, visit))
    assert f"data={home / 'data'}" in lines[0]
    assert "http=127.0.0.1:" in lines[0]


def test_a_start_warns_of_each_listener_that_is_open_to_all(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = new_node(
        home,
        listeners="IN=127.0.0.1:0,OUT=0.0.0.0:0",
        advertised_listeners="OUT=127.0.0.1:0",
        penstock_http="[::]:0",
    )
    ports: list[int] = []

    def visit() -> None:
        ports.extend([node._doors[1].address[1], int(node.http.rpartition(":")[2])])

    run(serve(node, visit))
    events = [r for r in caplog.records if r.getMessage().startswith("listener-open-to-all")]
    assert [event.levelno for event in events] == [logging.WARNING] * 2
    fields = [dict(structure(event)[1]) for event in events]
    assert [(each["listener"], each["address"]) for each in fields] == [
        ("OUT", f"0.0.0.0:{ports[0]}"),
        ("http", f"[::]:{ports[1]}"),
    ]
    assert "bind to a loopback or private address" in str(fields[0]["remedy"])


def test_a_start_on_loopback_warns_of_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(serve(new_node(home)))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_it_does_without_http(home: Path) -> None:
    node = new_node(home, penstock_http="off")

    async def started() -> str:
        await node.start()
        try:
            return node.http
        finally:
            await node.stop()

    assert run(started()) == "off"


def test_it_is_ready_only_between_start_and_stop_and_while_the_disk_takes_appends(
    home: Path,
) -> None:
    node = new_node(home)
    seen = [node._readiness()]

    async def life() -> None:
        await node.start()
        assert node._replicas is not None
        seen.append(node._readiness())
        node._replicas.disk_is_full(DiskFull("no room"))
        seen.append(node._readiness())
        node._replicas.disk_has_room()
        await node.stop()
        seen.append(node._readiness())

    run(life())
    assert seen == [["the broker is starting"], [], ["no room"], ["the broker is stopping"]]


def test_nobody_is_answered_before_the_broker_has_joined(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, join = new_node(home), Cluster.join
    answered: list[bool] = []

    async def late(self: Cluster, listeners: Any) -> None:
        with socket.create_connection(node._doors[0].address) as sock:
            sock.setblocking(False)
            for _ in range(20):
                await asyncio.sleep(0)
            answered.append(bool(node._doors[0]._connections))
            await join(self, listeners)

    monkeypatch.setattr(Cluster, "join", late)
    run(serve(node))
    assert answered == [False]


# Starts that fail ------------------------------------------------------------------------------


STEPS: list[tuple[Any, str]] = [
    (node_module, "DataDirectory"),
    (node_module, "bind"),
    (HttpServer, "start"),
    (node_module, "ReplicaManager"),
    (node_module, "SqliteStore"),
    (Cluster, "load"),
    (DataDirectory, "join"),
    (MetadataApplier, "begin"),
    (ReplicaManager, "recover"),
    (GroupCoordinator, "begin"),
    (TransactionCoordinator, "begin"),
    (Listener, "listen"),
    (Cluster, "join"),
    (ControllerElection, "admitted"),
    (DataDirectory, "note_broker_epoch"),
    (Listener, "open"),
    (Housekeeping, "start"),
    (Gauges, "register"),
]


@pytest.mark.parametrize(
    ("owner", "name"), STEPS, ids=[f"{owner.__name__}.{name}" for owner, name in STEPS]
)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_start_that_fails_at_any_step_leaves_nothing_behind(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
    is_new: bool,
) -> None:
    if not is_new:
        run(serve(new_node(home)))
    node = new_node(home)

    def fail(*_: object, **__: object) -> None:
        raise Failure

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(Failure):
            run(node.start())
    assert is_free(home)
    for sock in node._sockets:
        assert sock.fileno() == -1
    assert (len(node._tasks), len(node._chores)) == (0, 0)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    run(serve(new_node(home)))  # and the next one finds nothing in its way


def test_a_start_that_is_given_up_leaves_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def for_ever(_: Cluster, __: object) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Cluster, "join", for_ever)
    node = new_node(home)

    async def interrupted() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(node.start())
            await begun.wait()
            task.cancel()

    run(interrupted())
    assert is_free(home)


def test_what_is_in_the_way_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option, flag in (("listeners", "--listen"), ("penstock_http", "--http")):
            with pytest.raises(BrokerError, match=f"cannot listen on {address}.*{flag}"):
                run(new_node(home, **{option: address}).start())
    with pytest.raises(BrokerError, match="is not supported"):
        run(new_node(home, penstock_metadata="paper:notes").start())
    assert is_free(home)


def test_a_directory_is_used_by_one_broker_at_a_time(home: Path) -> None:
    async def twice() -> None:
        first = new_node(home)
        await first.start()
        try:
            with pytest.raises(StorageFault, match="is in use by another broker"):
                await new_node(home).start()
        finally:
            await first.stop()

    run(twice())


# Stops -----------------------------------------------------------------------------------------


def test_clients_that_wait_are_let_go_and_what_they_wrote_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A long poll is parked, and a produce waits for a sync that is at work."""
    node, sync = new_node(home, log_flush_interval_messages=1), FlushTicket.sync
    begun, gate = threading.Event(), threading.Event()

    def gated(ticket: FlushTicket) -> None:
        begun.set()
        gate.wait()
        sync(ticket)

    async def life() -> None:
        await node.start()
        producer, consumer = await asyncio.to_thread(visit)
        monkeypatch.setattr(FlushTicket, "sync", gated)
        producer.socket.sendall(2 * encode_request(produce_request("orders"), 9))
        await asyncio.to_thread(begun.wait)
        gate.set()
        await node.stop()
        for client in (producer, consumer):
            await asyncio.to_thread(client.await_hang_up)
            client.socket.close()

    def visit() -> tuple[RawClient, RawClient]:
        producer, consumer = RawClient(node.bootstrap), RawClient(node.bootstrap)
        producer.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), MetadataResponse, 9
        )
        produce(producer, "orders")
        wanted = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="orders", partitions=[wanted])]
        consumer.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=topics), 12)
        return producer, consumer

    run(life())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
    monkeypatch.undo()
    assert ending(home) is Ending.CLEAN
    kept: list[int] = []

    async def again() -> None:
        node = new_node(home)
        await node.start()
        assert node._replicas is not None
        kept.append(node._replicas.partition(node._replicas.topic("orders"), 0).log.next_offset)
        await node.stop()

    run(again())
    assert kept == [3]


def test_a_request_that_writes_in_turns_ends_before_the_logs_are_closed(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WriteTxnMarkers gives others a turn between markers. Its second one is due when the logs are being closed."""
    count = 4
    node, close = new_node(home, num_partitions=count), DataDirectory.close
    begun, closing = threading.Event(), asyncio.Event()

    async def turn(_seconds: float) -> None:
        begun.set()
        await closing.wait()

    def close_beside_others(directory: DataDirectory, marks: Any = MappingProxyType({})) -> None:
        close(directory, marks)
        others = asyncio.run_coroutine_threadsafe(some_turns(), loops[0])
        others.result()

    async def some_turns() -> None:
        closing.set()
        for _ in range(10 * count):
            await asyncio.sleep(0)

    def visit() -> RawClient:
        client = RawClient(node.bootstrap)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        client.ask(asked, MetadataResponse, 9)
        for index in range(count):
            produce(client, "orders", index)
        topic = WritableTxnMarkerTopic(name="orders", partition_indexes=list(range(count)))
        marker = WritableTxnMarker(
            producer_id=5, producer_epoch=0, transaction_result=True, topics=[topic]
        )
        client.send(WriteTxnMarkersRequest(markers=[marker]), 1)
        begun.wait()
        return client

    async def life() -> None:
        loops.append(asyncio.get_running_loop())
        await node.start()
        client = await asyncio.to_thread(visit)
        await node.stop()
        await asyncio.to_thread(client.await_hang_up)
        client.socket.close()

    loops: list[asyncio.AbstractEventLoop] = []
    with monkeypatch.context() as patch:
        patch.setattr(write_txn_markers, "_PER_TURN", 1)
        patch.setattr(write_txn_markers, "_let_others_go_on", turn)
        patch.setattr(DataDirectory, "close", close_beside_others)
        run(life())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
    assert ending(home) is Ending.CLEAN
    ends: list[object] = []

    async def again() -> None:
        node = new_node(home)
        await node.start()
        assert node._replicas is not None
        ends.extend(p.failure or p.log.next_offset for p in node._replicas.partitions())
        await node.stop()

    run(again())
    assert ends == [2, 1, 1, 1], "one marker was written; those that were refused left no byte"


@pytest.mark.parametrize("busy", ["run_in_thread", "run_compaction"])
def test_acknowledgements_do_not_wait_for_cold_reads_or_compaction(home: Path, busy: str) -> None:
    """However many there are, and however slow the disk reads."""
    node, gate = new_node(home, log_flush_interval_messages=1), threading.Event()

    async def life() -> None:
        await node.start()
        try:
            replicas = node._replicas
            assert replicas is not None
            run_slowly = getattr(replicas, busy)
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(run_slowly(gate.wait))
                await asyncio.sleep(0)
                await asyncio.to_thread(visit)
                await replicas.run_sync(lambda: None)
                gate.set()
        finally:
            gate.set()
            await node.stop()

    def visit() -> None:
        with RawClient(node.bootstrap) as client:
            client.socket.settimeout(PATIENCE_S)
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
            client.ask(asked, MetadataResponse, 9)
            produce(client, "orders")

    run(life())


def test_after_a_fault_of_the_disk_the_end_is_not_clean(home: Path) -> None:
    node = new_node(home)

    async def life() -> None:
        await node.start()
        assert node._replicas is not None
        node._replicas.disk_failed(StorageFault("the disk is gone"))
        await node.stop()

    run(life())
    assert ending(home) is not Ending.CLEAN


@pytest.mark.parametrize("error", [OutOfResources, DiskFull])
@pytest.mark.parametrize("name", ["note_broker_epoch", "note_registered"])
def test_a_session_is_written_down_when_a_shortage_has_passed(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(node_module, "_NOTE_AGAIN_S", 0.0)
    written: list[int] = []
    is_written = asyncio.Event()
    note = getattr(DataDirectory, name)

    def short(directory: DataDirectory, epoch: int | None) -> None:
        if epoch is not None:
            written.append(epoch)
            if len(written) == 1:
                raise error("nothing is left")
            is_written.set()
        note(directory, epoch)

    node = new_node(home)

    async def life() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DataDirectory, name, short)
            await node.start()
            await is_written.wait()
        await node.stop()

    run(life())
    assert written[0] == written[1] > 0
    assert "listener-failed" not in caplog.text
    assert ending(home) is Ending.CLEAN
    assert last_epoch(home) == written[-1]


@pytest.mark.parametrize("error", [StorageFault, DiskFull])
def test_a_log_that_cannot_be_closed_well_is_said_so_and_checked_at_the_next_start(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
) -> None:
    node = new_node(home)

    def visit() -> None:
        with RawClient(node.bootstrap) as client:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
            client.ask(asked, MetadataResponse, 9)
            produce(client, "orders")

    def broken(_: Log) -> None:
        raise error("it cannot be closed")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "close_begin", broken)
        run(serve(node, visit))
    assert "unclean-stop" in caplog.text
    assert ending(home) is not Ending.CLEAN


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Listener, "close"),
        (TransactionCoordinator, "close"),
        (GroupCoordinator, "close"),
        (Housekeeping, "stop"),
        (ReplicaManager, "stop"),
        (Cluster, "stop"),
    ],
)
def test_a_step_of_the_stop_that_fails_does_not_keep_the_others_from_being_taken(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
) -> None:
    node, original = new_node(home), getattr(owner, name)

    def fail(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        if asyncio.iscoroutine(result):
            return _and_fail(result)
        raise Failure

    monkeypatch.setattr(owner, name, fail)
    run(serve(node))
    assert "stop-failed" in caplog.text
    assert is_free(home)


async def _and_fail(coroutine: Coroutine[Any, Any, Any]) -> None:
    await coroutine
    raise Failure


def test_the_metadata_store_is_closed_last_of_what_uses_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noting(owner: Any, name: str, told: str) -> None:
        original = getattr(owner, name)

        def noted(*args: Any, **named: Any) -> Any:
            order.append(told)
            return original(*args, **named)

        monkeypatch.setattr(owner, name, noted)

    noting(Listener, "close", "doors")
    noting(GroupCoordinator, "close", "groups")
    noting(Housekeeping, "stop", "housekeeping")
    noting(DataDirectory, "close", "directory")
    noting(Cluster, "stop", "cluster")
    noting(SqliteStore, "close", "store")
    noting(HttpServer, "close", "http")
    run(serve(new_node(home)))
    assert order == ["doors", "groups", "housekeeping", "directory", "cluster", "store", "http"]


def test_a_sync_that_fails_during_the_stop_makes_it_an_unclean_one(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux reports a failed sync once: the next one of the same file says that all is well."""
    node = new_node(home, log_flush_interval_ms=1)
    begun, may_end = threading.Event(), threading.Event()

    class FailingOnce(Disk):
        __slots__ = ()

        def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".log") and not begun.is_set():
                begun.set()
                may_end.wait(PATIENCE_S)
                raise OSError(errno.EIO, "Input/output error")
            os.fdatasync(fd)

    def visit() -> None:
        with RawClient(node.bootstrap) as client:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
            client.ask(asked, MetadataResponse, 9)
            produce(client, "orders")
        begun.wait(PATIENCE_S)

    async def life() -> None:
        await node.start()
        assert node._directory is not None
        node._directory.files.disk.__class__ = FailingOnce
        await asyncio.to_thread(visit)
        asyncio.get_running_loop().call_later(0.2, may_end.set)
        await node.stop()

    run(life())
    assert begun.is_set()
    assert ending(home) is not Ending.CLEAN
    caplog.clear()  # the error's traceback holds the file


def test_a_read_that_never_returns_does_not_keep_a_broker_from_stopping(home: Path) -> None:
    before = resources()
    node = new_node(home, penstock_disk_hang_max_ms=100)
    may_end = threading.Event()

    async def life() -> None:
        await node.start()
        assert node._replicas is not None
        reading = asyncio.get_running_loop().create_task(
            node._replicas.run_in_thread(lambda: may_end.wait(PATIENCE_S))
        )
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(node.stop(), PATIENCE_S / 2)
        finally:
            may_end.set()
            await reading

    run(life())
    deadline_s = time.monotonic() + PATIENCE_S
    while resources() - before and time.monotonic() < deadline_s:  # the close goes on in its thread
        time.sleep(0.01)


# Gauges ----------------------------------------------------------------------------------------


def sample(node: Node, name: str, **labels: str) -> float:
    (family,) = [family for family in node.metrics.registry.families() if family.name == name]
    assert isinstance(family, SampledFamily)
    found = dict(family.samples())
    return found[tuple(labels[name] for name in family.label_names)]


def test_gauges_are_read_off_the_broker(home: Path) -> None:
    node = new_node(home, num_partitions=3)
    seen: dict[str, float] = {}

    def visit() -> None:
        with RawClient(node.bootstrap) as client:
            client.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
            client.ask(asked, MetadataResponse, 9)
            produce(client, "orders")
            wanted = [FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)]
            topics = [FetchTopic(topic="orders", partitions=wanted)]
            begin: Message = FetchRequest(session_epoch=0, max_wait_ms=0, topics=topics)
            client.send(begin, 12)
            client.receive()
            for name in (
                "kafka_server_replicamanager_partitioncount",
                "kafka_server_replicamanager_offlinereplicacount",
                "kafka_controller_kafkacontroller_globalpartitioncount",
                "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            ):
                seen[name] = sample(node, name)
            seen["end"] = sample(node, "kafka_log_log_logendoffset", topic="orders", partition="0")

    run(serve(node, visit))
    assert list(seen.values()) == [3, 0, 3, 1, 1]
