"""The shell around transactions: decided in the log before anybody hears of it, and finished by itself after a crash."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.coordinators import shard_log, shards, txn_shard
from penstock.broker.coordinators.markers import Ending, MarkerWriter
from penstock.broker.coordinators.shards import partition_for
from penstock.broker.coordinators.transactions import STATE_TOPIC
from penstock.broker.partitions.partition import Partition
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, StorageFault
from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.log import Origin
from penstock.transactions.records import encode_key
from penstock.transactions.shard import Shard
from penstock.transactions.state import Producer, Transaction
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.clocks import ManualClock
from tests.support.context import BrokerContext, broker_context
from tests.support.txn_session import NEW, OLD, Session, committed_values

E = ErrorCode
both_versions = pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1",
}


def until(broker: BrokerContext, what: Callable[[], object]) -> None:
    async def wait() -> None:
        for _ in range(10_000):
            if what():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it did not come to be")

    broker.run(wait())


def found(broker: BrokerContext, name: str = "tx") -> Transaction:
    transaction = broker.services.transactions.find(name)
    assert transaction is not None
    return transaction


def state(broker: BrokerContext, name: str = "tx") -> str:
    return found(broker, name).status.title


def state_partition(broker: BrokerContext, name: str = "tx") -> Partition:
    return broker.partition(STATE_TOPIC, partition_for(name, 2))


def begun(broker: BrokerContext, version: int = NEW, *, timeout_ms: int = 60_000) -> Session:
    """With records in both partitions of t, and an offset of a group."""
    session = Session(broker, version=version)
    assert session.initialize(timeout_ms=timeout_ms) is E.NONE
    if version == OLD:
        session.add("t", 0, 1)
        session.add_group("g")
    for index in (0, 1):
        assert session.send("t", index, b"x") is E.NONE
    assert session.send_offset("g", "t", 5) is E.NONE
    return session


def offset_of(broker: BrokerContext) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id="g", topics=topics)
    answer = broker.ask(OffsetFetchRequest(groups=[group], require_stable=True), 9)
    if answer.groups[0].error_code:
        return answer.groups[0].error_code, -1
    (row,) = answer.groups[0].topics[0].partitions
    return row.error_code, row.committed_offset


def until_seen(broker: BrokerContext, *, committed: bool) -> None:
    """Until both partitions and the group know how it ended."""
    until(broker, lambda: not broker.services.transactions.is_loading)
    until(broker, lambda: state(broker).startswith("Complete"))
    until(broker, lambda: not broker.services.groups.is_loading)
    for index in (0, 1):
        assert committed_values(broker, "t", index) == ([b"x"] if committed else [])
    assert offset_of(broker) == (E.NONE, 5 if committed else -1)


@both_versions
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_prepared_end_is_finished_after_a_crash_however_many_markers_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, committed: bool, written: int
) -> None:
    write = MarkerWriter.write
    left = [written]

    def dies_after_a_few(self: MarkerWriter, *arguments: object) -> object:
        if not left[0]:
            raise DiskFull("it dies here")
        left[0] -= 1
        return write(self, *arguments)  # type: ignore[arg-type] # as it was called

    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker, version)
        monkeypatch.setattr(MarkerWriter, "write", dies_after_a_few)
        assert session.end(committed=committed) is E.NONE
        if written < 3:
            assert state(broker).startswith("Prepare"), "it is decided, and not done"
    monkeypatch.setattr(MarkerWriter, "write", write)
    with broker_context(tmp_path, SETTINGS) as broker:
        until_seen(broker, committed=committed)
        ends = [broker.partition("t", index).log.next_offset for index in (0, 1)]
        assert sum(ends) == 4 or (version == OLD and 0 < written < 3), "effect once"
    with broker_context(tmp_path, SETTINGS) as broker:
        until_seen(broker, committed=committed)
        assert ends == [broker.partition("t", index).log.next_offset for index in (0, 1)]


@both_versions
def test_nothing_new_begins_before_the_markers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker, version)
        monkeypatch.setattr(MarkerWriter, "write", _refuse)
        session.end(committed=True)
        if version == OLD:
            assert session.add("t", 0) == [E.CONCURRENT_TRANSACTIONS]
            assert session.send("t", 0, b"y", version=11) is E.NONE, "still the one that ends"
            other = next(g for g in "abcd" if partition_for(g, 2) != partition_for("g", 2))
            code = session.send_offset(other, "t", 6)
            assert code is E.COORDINATOR_LOAD_IN_PROGRESS, "which old clients try again"
        else:
            assert session.send("t", 0, b"y") is E.CONCURRENT_TRANSACTIONS
            assert session.send_offset("g", "t", 6) is E.CONCURRENT_TRANSACTIONS
        assert session.initialize() is E.CONCURRENT_TRANSACTIONS
        monkeypatch.undo()
        until(broker, lambda: state(broker) == "CompleteCommit")
        if version == NEW:
            assert session.send("t", 0, b"y") is E.NONE


def _refuse(*_: object) -> None:
    raise DiskFull("no room")


@both_versions
def test_what_takes_too_long_is_aborted(tmp_path: Path, version: int) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker, version, timeout_ms=5000)
        clock = broker.services.clock
        assert isinstance(clock, ManualClock)
        clock.advance(4999)
        broker.run(asyncio.sleep(0.01))
        assert state(broker) == "Ongoing"
        clock.advance(1)
        until_seen(broker, committed=False)
        code = session.end(committed=True)
        assert code is (E.PRODUCER_FENCED if version == OLD else E.TRANSACTION_ABORTABLE)
        if version == NEW:
            assert session.end(committed=False) is E.NONE
            assert session.send("t", 0, b"goes on") is E.NONE


def test_ids_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    settings = SETTINGS | {"transactional.id.expiration.ms": "10000"}
    with broker_context(tmp_path, settings) as broker:
        session = Session(broker)
        session.initialize()
        clock = broker.services.clock
        assert isinstance(clock, ManualClock)
        clock.advance(9999)
        broker.run(asyncio.sleep(0.01))
        first = found(broker).producer
        clock.advance(1)
        until(broker, lambda: broker.services.transactions.find("tx") is None)
        session.initialize()
        assert session.producer.id > first.id
    with broker_context(tmp_path, settings) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert found(broker).producer == session.producer, "and not what a tombstone forgot"


@pytest.mark.parametrize("method", ["overdue", "expired"])
def test_a_shard_that_cannot_be_swept_ends_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    settings = SETTINGS | {"transactional.id.expiration.ms": "10000"}
    with broker_context(tmp_path, settings) as broker:
        broker.create_topic("t", 2)
        clock = broker.services.clock
        assert isinstance(clock, ManualClock)
        begun(broker, timeout_ms=20_000)
        clock.advance(10_000)  # before that a new coordinator expires nothing
        calls: list[object] = []

        def fail(self: object, *_: object) -> None:
            calls.append(self)
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(Shard, method, fail)
            until(broker, lambda: len(calls) > 4)
        assert len(set(map(id, calls))) == 2, "both shards, again and again"
        clock.advance(10_000)
        until_seen(broker, committed=False)
        clock.advance(10_000)
        until(broker, lambda: broker.services.transactions.find("tx") is None)


def test_a_record_of_the_future_stops_its_shard_and_no_other(tmp_path: Path) -> None:
    names = {partition_for(f"tx{number}", 2): f"tx{number}" for number in range(10)}
    with broker_context(tmp_path, SETTINGS) as broker:
        for name in names.values():
            assert Session(broker, name).initialize() is E.NONE
        record = Record(0, 1, encode_key(names[0]), b"\x00\x63from the future")
        batch = build_batch([record])
        broker.call(
            lambda: broker.partition(STATE_TOPIC, 0).append(
                memoryview(batch), now_ms=1, origin=Origin.COORDINATOR
            )
        )
    with broker_context(tmp_path, SETTINGS) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert Session(broker, names[0]).initialize() is E.COORDINATOR_NOT_AVAILABLE
        assert Session(broker, names[1]).initialize() is E.NONE


def test_a_shard_that_cannot_be_read_for_want_of_a_descriptor_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        assert Session(broker).initialize() is E.NONE
    monkeypatch.setattr(shards, "_LOAD_AGAIN_S", 0.001)
    read_all, wanting = shard_log.read_all, [2]

    async def too_many_open(*arguments: Any, **options: Any) -> int:
        if wanting[0]:
            wanting[0] -= 1
            raise BrokerError("too many open files", E.KAFKA_STORAGE_ERROR)
        return await read_all(*arguments, **options)

    monkeypatch.setattr(shard_log, "read_all", too_many_open)
    with broker_context(tmp_path, SETTINGS) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert not wanting[0]
        assert Session(broker).initialize() is E.NONE


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), StorageFault("cannot be read")])
def test_a_shard_that_cannot_be_read_by_any_fault_keeps_no_other_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    names = {partition_for(f"tx{number}", 2): f"tx{number}" for number in range(10)}
    with broker_context(tmp_path, SETTINGS) as broker:
        for name in names.values():
            assert Session(broker, name).initialize() is E.NONE
    read_all = shard_log.read_all

    async def fails_at_0(partition: Partition, *arguments: Any, **options: Any) -> int:
        if partition.name == (STATE_TOPIC, 0):
            raise error
        return await read_all(partition, *arguments, **options)

    monkeypatch.setattr(shard_log, "read_all", fails_at_0)
    with broker_context(tmp_path, SETTINGS) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        told = Session(broker, names[0]).initialize()
        assert told is E.COORDINATOR_NOT_AVAILABLE
        if isinstance(error, StorageFault):
            assert broker.services.replicas.is_offline, "the disk under all is the same"
        else:
            assert Session(broker, names[1]).initialize() is E.NONE


def test_who_waits_for_a_producer_id_is_answered_also_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        Session(broker, "other").initialize()

        async def none_there() -> int:
            raise StoreError("the store is away")

        with monkeypatch.context() as away:
            away.setattr(broker.services.cluster, "next_producer_id", none_there)
            assert Session(broker).initialize() is E.COORDINATOR_NOT_AVAILABLE
        assert Session(broker).initialize() is E.NONE


@both_versions
def test_what_was_read_back_is_told_to_nobody_before_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A new leader has records that no other replica may have: it could still lose them."""
    monkeypatch.setattr(MarkerWriter, "write", _refuse)
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker, version)
        assert session.end(committed=True) is E.NONE
    monkeypatch.undo()
    committed, gate = Partition.committed, list[asyncio.Future[None]]()

    def not_yet(self: Partition, next_offset: int) -> asyncio.Future[None] | None:
        if self.name.topic != STATE_TOPIC:
            return committed(self, next_offset)
        gate.append(asyncio.get_running_loop().create_future())
        return gate[-1]

    monkeypatch.setattr(Partition, "committed", not_yet)
    with broker_context(tmp_path, SETTINGS) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        broker.run(asyncio.sleep(0.01))
        assert state(broker) == "PrepareCommit"
        assert broker.partition("t").log.next_offset == 1, "no marker"
        monkeypatch.undo()
        for waiting in gate:
            broker.call(partial(waiting.set_result, None))
        until_seen(broker, committed=True)


def test_a_marker_among_the_states_is_no_reason_to_stop(tmp_path: Path) -> None:
    """Nothing there is in a transaction, so it ends nothing; and it came by no fault of the shard."""
    with broker_context(tmp_path, SETTINGS) as broker:
        session = Session(broker)
        assert session.initialize() is E.NONE
        writer = broker.services.transactions.markers
        ending = Ending(session.producer, True, 0)
        name = TopicPartition(STATE_TOPIC, partition_for("tx", 2))
        broker.call(lambda: writer.write(name, ending, writer.build(ending)))
    with broker_context(tmp_path, SETTINGS) as broker:
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert found(broker).producer == session.producer


def test_a_marker_that_comes_again_waits_until_the_first_is_committed(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2, {"flush.messages": "1"})  # so that it takes a while
        session = begun(broker)
        writer = broker.services.transactions.markers
        id_, epoch = session.producer
        ending = Ending(Producer(id_, epoch + 1), False, 0, ends_epoch=True)

        async def twice() -> None:
            name = TopicPartition("t", 0)
            waits = [writer.write(name, ending, writer.build(ending)) for _ in range(2)]
            for waiting in waits:
                assert waiting is not None
                await waiting
            assert writer.write(name, ending, writer.build(ending)) is None

        broker.run(twice())
        assert broker.partition("t").log.next_offset == 2


def test_while_nothing_can_be_written_nothing_is_decided(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker)
        broker.call(lambda: broker.replicas.disk_is_full(DiskFull("full")))
        assert session.end(committed=True) is E.COORDINATOR_NOT_AVAILABLE
        assert session.initialize() is E.COORDINATOR_NOT_AVAILABLE
        assert session.send("t", 0, b"y") is E.KAFKA_STORAGE_ERROR
        other = Session(broker, "other")
        other.producer = session.producer
        assert other.send("t", 1, b"y") is E.KAFKA_STORAGE_ERROR, "which it may try again"
        assert state(broker) == "Ongoing"
        broker.call(broker.replicas.disk_has_room)
        assert session.end(committed=True) is E.NONE
        until_seen(broker, committed=True)


def test_a_lost_write_is_a_lost_decision_and_the_log_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker)
        partition = state_partition(broker)
        append = Partition.append

        def fails(self: Partition, *arguments: object, **options: object) -> object:
            if self is partition:
                raise DiskFull("no room")
            return append(self, *arguments, **options)  # type: ignore[arg-type] # as it was called

        monkeypatch.setattr(Partition, "append", fails)
        assert session.end(committed=True) is E.NOT_COORDINATOR
        monkeypatch.undo()
        assert session.end(committed=True) is E.COORDINATOR_LOAD_IN_PROGRESS
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert session.end(committed=True) is E.NONE
        until_seen(broker, committed=True)


def test_a_deleted_topic_does_not_keep_a_transaction_from_its_end(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        broker.create_topic("gone")
        session = begun(broker)
        assert session.send("gone", 0, b"x") is E.NONE
        broker.run(broker.cluster.delete_topics(["gone"]))
        assert session.end(committed=True) is E.NONE
        until_seen(broker, committed=True)


def test_a_transaction_of_very_many_partitions_is_ended_in_turns(tmp_path: Path) -> None:
    count = 250
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("many", count)
        session = Session(broker, version=OLD)
        session.initialize()
        assert set(session.add("many", *range(count))) == {E.NONE}
        assert session.end(committed=True) is E.NONE
        until(broker, lambda: state(broker) == "CompleteCommit")
        ends = [broker.partition("many", index).log.next_offset for index in range(count)]
        assert ends == [1] * count, "also where nothing was written: a zombie's epoch is over there"


def test_pending_offsets_are_read_back(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker)
    with broker_context(tmp_path, SETTINGS) as broker:
        session.broker = broker
        until(broker, lambda: not broker.services.groups.is_loading)
        assert offset_of(broker) == (E.UNSTABLE_OFFSET_COMMIT, -1)
        until(broker, lambda: not broker.services.transactions.is_loading)
        assert session.end(committed=True) is E.NONE
        until_seen(broker, committed=True)


def test_retention_keeps_what_is_not_decided(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2, {"segment.bytes": "1048576", "retention.ms": "1"})
        session = begun(broker)
        partition = broker.partition("t")
        broker.call(partition.log.roll)
        clock = broker.services.clock
        assert isinstance(clock, ManualClock)
        clock.advance(10_000)
        stable = partition.last_stable_offset
        broker.call(lambda: partition.log.apply_retention(clock.wall_ms(), upto_offset=stable))
        assert partition.log.start_offset == 0
        session.end(committed=True)
        stable = partition.last_stable_offset
        broker.call(lambda: partition.log.apply_retention(clock.wall_ms(), upto_offset=stable))
        assert partition.log.start_offset > 0


def test_readers_are_never_before_the_start_of_the_log(tmp_path: Path) -> None:
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        begun(broker)
        partition = broker.partition("t")
        assert partition.last_stable_offset == 0
        broker.call(lambda: partition.delete_records_before(-1))
        assert partition.last_stable_offset == partition.log.start_offset == 1


class Gate:
    """Nothing that is written to the states of transactions is committed before `open`."""

    def __init__(self, broker: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self._waiting: list[asyncio.Future[None]] = []
        self._is_open = False
        committed = Partition.committed

        def not_yet(partition: Partition, next_offset: int) -> asyncio.Future[None] | None:
            if self._is_open or partition.name.topic != STATE_TOPIC:
                return committed(partition, next_offset)
            self._waiting.append(asyncio.get_running_loop().create_future())
            return self._waiting[-1]

        monkeypatch.setattr(Partition, "committed", not_yet)

    def open(self) -> None:
        def opened() -> None:
            self._is_open = True
            for waiting in self._waiting:
                waiting.set_result(None)

        self._broker.call(opened)


@pytest.mark.parametrize("what", ["produce", "offsets"])
def test_an_implicit_add_that_came_too_early_is_retried_also_when_its_refusal_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The refusal waits until another write of the shard is committed. Meanwhile the transaction comes to rest."""
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session, write = begun(broker), MarkerWriter.write
        other = next(
            f"o{n}" for n in range(99) if partition_for(f"o{n}", 2) == partition_for("tx", 2)
        )
        neighbour = Session(broker, other)
        assert neighbour.initialize() is E.NONE
        monkeypatch.setattr(MarkerWriter, "write", _refuse)
        assert session.end(committed=True) is E.NONE
        gate = Gate(broker, monkeypatch)

        asked: list[asyncio.Task[Any]] = []

        async def early() -> None:
            partition = TopicPartition("t", 0)
            neighbours = broker.services.transactions.add(other, neighbour.producer, [partition], 2)
            assert isinstance(neighbours, asyncio.Future), "its write is not committed"
            if what == "produce":
                request = broker._handled(session.request("t", 0, b"y"), 12)
            else:
                request = broker._handled(session.offset_request("g", "t", 6), 5)
            asked.append(asyncio.get_running_loop().create_task(request))
            await asyncio.sleep(0)

        broker.run(early())
        monkeypatch.setattr(MarkerWriter, "write", write)
        until(broker, lambda: state(broker) == "CompleteCommit")
        assert not asked[0].done()
        gate.open()
        response = broker.run(_result(asked[0]))
        if what == "produce":
            code = response.responses[0].partition_responses[0].error_code
        else:
            code = response.topics[0].partitions[0].error_code
        assert code is E.CONCURRENT_TRANSACTIONS, "which clients retry"
        retry = (
            session.send("t", 0, b"y") if what == "produce" else session.send_offset("g", "t", 6)
        )
        assert retry is E.NONE


def test_while_too_few_replicas_are_in_sync_transactions_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_few_in_sync(partition: Partition) -> None:
        if partition.name.topic == STATE_TOPIC:
            raise BrokerError("1 of 2 is in sync", E.NOT_ENOUGH_REPLICAS)

    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        broker.create_topic("u")
        session, clock = begun(broker, timeout_ms=5000), broker.services.clock
        shard = broker.services.transactions._shard_of("tx")
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "check_in_sync", too_few_in_sync)
            assert session.end(committed=True) is E.COORDINATOR_NOT_AVAILABLE
            assert session.initialize() is E.COORDINATOR_NOT_AVAILABLE
            assert session.send("u", 0, b"y") is E.NOT_ENOUGH_REPLICAS, "it had to be added"
            assert session.send("t", 0, b"x") is E.NONE, "it is in the transaction"
            assert isinstance(clock, ManualClock)
            clock.advance(5000)
            broker.run(asyncio.sleep(0.02))
            assert state(broker) == "Ongoing"
        until(broker, lambda: state(broker) == "CompleteAbort")
        assert broker.services.transactions._shard_of("tx") is shard, "it was never lost"


def test_an_end_whose_markers_are_written_is_completed_when_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_shard, "_MARKERS_AGAIN_S", 0.001)
    with broker_context(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 2)
        session = begun(broker)
        shard = broker.services.transactions._shard_of("tx")
        unable: list[bool] = []
        check = Partition.check_in_sync

        def too_few_in_sync(partition: Partition) -> None:
            if partition.name.topic == STATE_TOPIC and state(broker) == "PrepareCommit":
                unable.append(True)
                if len(unable) < 5:
                    raise BrokerError("1 of 2 is in sync", E.NOT_ENOUGH_REPLICAS)
            check(partition)

        monkeypatch.setattr(Partition, "check_in_sync", too_few_in_sync)
        assert session.end(committed=True) is E.NONE
        until_seen(broker, committed=True)
        assert len(unable) == 5
        assert broker.services.transactions._shard_of("tx") is shard


async def _result(task: asyncio.Task[Any]) -> Any:
    return await task
