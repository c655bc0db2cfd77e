"""A partition with other replicas: what its leader acknowledges, what its followers take and drop."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.topic import Read
from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, NotLeader, OffsetOutOfRange
from penstock.storage import files
from penstock.storage.epochs import EpochEnd
from tests.support.engine import Engine, running_engine
from tests.unit.storage.logs import FaultyDisk, failing

ME, ANN, BOB = 1, 2, 3
EVERYBODY = (ME, ANN, BOB)
ALL = 1 << 30


class Keeper:
    """What an IsrKeeper is asked for."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, ...]] = []
        self.behind: list[Partition] = []
        self.durable: list[Partition] = []
        self.awaited: set[int] = set()

    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool:  # noqa: ARG002 - a Replication
        return broker_id in self.awaited

    def fell_behind(self, partition: Partition) -> None:
        self.behind.append(partition)

    def isr_changes(self, partition: Partition, members: tuple[int, ...]) -> None:
        self.wanted.append(members)
        assert partition.leadership is not None
        partition.leadership.propose(members)

    def made_durable(self, partition: Partition) -> None:
        self.durable.append(partition)


@pytest.fixture(autouse=True)
def keeper(engine: Engine) -> Keeper:
    engine.replicas.replication = keeper = Keeper()
    return keeper


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    """Another broker."""
    with running_engine(tmp_path / "other") as started:
        started.replicas.replication = Keeper()
        yield started


def state(
    epoch: int = 5, isr: tuple[int, ...] = EVERYBODY, version: int = 10, **more: Any
) -> PartitionImage:
    return PartitionImage(more.pop("leader", ME), epoch, version, EVERYBODY, isr, **more)


def led(engine: Engine, isr: tuple[int, ...] = EVERYBODY, **settings: Any) -> Partition:
    partition = engine.partition(min_insync_replicas=2, **settings)
    partition.lead(ME, state(isr=isr))
    return partition


def fetched(
    partition: Partition, broker: int, offset: int, last_epoch: int = -1
) -> Read | EpochEnd:
    return partition.read_as_replica((broker, 7), offset, last_epoch, ALL, at_least_one=True)


def data_of(read: Read | EpochEnd) -> bytes:
    assert isinstance(read, Read)
    return b"".join(piece.read() for piece in read.slices)


# Leading


def test_a_record_is_committed_when_every_in_sync_replica_has_asked_for_the_next(
    engine: Engine, keeper: Keeper
) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    wait = partition.committed(1)
    assert wait is not None
    assert keeper.behind == [partition]
    for broker in (ANN, BOB):
        assert data_of(fetched(partition, broker, 0))
        assert not wait.done()
    fetched(partition, ANN, 1, 5)
    assert not wait.done()
    fetched(partition, BOB, 1, 5)
    assert wait.done()
    assert partition.high_watermark == 1


def test_consumers_see_what_is_committed_and_followers_everything(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    assert partition.read(0, ALL, 0).size_bytes == 0
    read = fetched(partition, ANN, 0)
    assert isinstance(read, Read)
    assert (read.next_offset, read.end_offset, read.high_watermark) == (1, 1, 0)


def test_the_leader_alone_acknowledges_acks_1(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    assert partition.written(1) is None
    assert partition.committed(1) is not None


def test_where_each_append_is_synced_the_leaders_own_disk_counts_too(engine: Engine) -> None:
    partition = led(engine, flush_messages=1)
    engine.append(partition, b"one")
    durable = partition.written(1)
    for broker in (ANN, BOB):
        fetched(partition, broker, 1, 5)
    assert durable is not None
    assert partition.high_watermark == 0
    engine.settle()
    assert durable.done()
    assert partition.high_watermark == 1


def test_nothing_is_taken_with_acks_all_while_too_few_are_in_sync(engine: Engine) -> None:
    partition = led(engine, isr=(ME,))
    with pytest.raises(BrokerError) as refused:
        partition.check_in_sync()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    engine.append(partition, b"acks=1")
    assert partition.high_watermark == 0, "it stands still"


def test_a_replica_that_is_being_added_does_not_raise_the_minimum(engine: Engine) -> None:
    partition = engine.partition(min_insync_replicas=3)
    partition.lead(ME, state(isr=(ME, ANN), adding=(BOB,)))
    partition.check_in_sync()
    assert partition.min_isr == 2


def test_a_follower_that_caught_up_is_proposed_and_holds_the_mark_until_that_is_decided(
    engine: Engine, keeper: Keeper
) -> None:
    partition = led(engine, isr=(ME, ANN))
    engine.append(partition, b"one")
    fetched(partition, ANN, 1, 5)
    assert partition.high_watermark == 1
    fetched(partition, BOB, 1, 5)
    assert keeper.wanted == [EVERYBODY]
    engine.append(partition, b"two")
    fetched(partition, ANN, 2, 5)
    assert partition.high_watermark == 1
    partition.isr_committed(state(version=11))
    assert partition.high_watermark == 1
    fetched(partition, BOB, 2, 5)
    assert partition.high_watermark == 2


def test_a_follower_that_lost_what_was_committed_leaves_at_once(
    engine: Engine, keeper: Keeper
) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    for broker in (ANN, BOB):
        fetched(partition, broker, 1, 5)
    fetched(partition, BOB, 0)
    assert keeper.wanted == [(ME, ANN)]


def test_who_waits_is_sent_away_when_another_leads(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    wait = partition.committed(1)
    assert wait is not None
    partition.follow(state(epoch=6, leader=ANN))
    assert isinstance(wait.exception(), NotLeader)
    with pytest.raises(NotLeader, match="led by broker 2"):
        engine.append(partition, b"two")
    with pytest.raises(NotLeader):
        fetched(partition, BOB, 0)


def test_a_leader_without_a_session_leads_nothing(engine: Engine) -> None:
    partition = led(engine)
    partition.follow(None)
    with pytest.raises(NotLeader, match="no leader"):
        engine.append(partition, b"one")
    partition.lead(ME, state(epoch=6))
    engine.append(partition, b"one")


def test_a_leader_that_is_elected_again_forgets_what_its_followers_had(engine: Engine) -> None:
    """They may have cut their logs under another leader, or lost them."""
    partition = led(engine)
    engine.append(partition, b"one")
    fetched(partition, ANN, 1)
    fetched(partition, BOB, 0)
    partition.lead(ME, state(epoch=6, isr=(ME, ANN), version=11))
    assert partition.leadership is not None
    assert partition.leadership.follower(ANN) is None
    assert partition.high_watermark == 0
    fetched(partition, ANN, 1)
    assert partition.high_watermark == 1


def test_what_was_decided_before_does_not_undo_what_was_decided_later(engine: Engine) -> None:
    partition = led(engine)
    partition.follow(state(epoch=7, leader=ANN))
    partition.lead(ME, state(epoch=6))
    assert (partition.is_leader, partition.leader_id, partition.leader_epoch) == (False, ANN, 7)


def test_a_new_leader_says_that_it_does_not_know_the_end_yet(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    partition.lead(ME, state(epoch=6))
    with pytest.raises(BrokerError) as refused:
        partition.check_settled()
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    for broker in (ANN, BOB):
        fetched(partition, broker, 1, 5)
    partition.check_settled()


# Where logs part


def test_a_follower_whose_log_is_no_prefix_is_told_where_they_part(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    partition.lead(ME, state(epoch=8))
    engine.append(partition, b"two")
    assert fetched(partition, ANN, 3, 5) == EpochEnd(5, 1)
    assert fetched(partition, ANN, 3, 7) == EpochEnd(5, 1)
    assert partition.leadership is not None
    assert partition.leadership.follower(ANN) is None, "that is no news of what it has"
    assert data_of(fetched(partition, ANN, 1, 5))


def test_an_offset_before_the_log_is_out_of_range(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    for broker in (ANN, BOB):
        fetched(partition, broker, 1, 5)
    partition.delete_records_before(1)
    with pytest.raises(OffsetOutOfRange):
        fetched(partition, ANN, 0)


# Following


def copy(leader: Partition, follower: Partition, broker: int = ANN) -> None:
    """One fetch, there and back."""
    log = follower.log
    read = fetched(leader, broker, follower.fetch_offset, log.epochs.latest)
    records = data_of(read)
    if records:
        follower.append_replicated(memoryview(records))
    assert isinstance(read, Read)
    follower.learn(read.high_watermark, read.log_start_offset)


def test_a_follower_has_the_leaders_bytes_and_its_high_watermark(
    engine: Engine, other: Engine
) -> None:
    leader, follower = led(engine, isr=(ME, ANN)), other.partition()
    follower.follow(state())
    for value in (b"one", b"two"):
        engine.append(leader, value)
        copy(leader, follower)
    assert (follower.log.next_offset, follower.high_watermark) == (2, 1)
    copy(leader, follower)
    assert (leader.high_watermark, follower.high_watermark) == (2, 2)
    mine, theirs = leader.read(0, ALL, 0), follower.read(0, ALL, 0)
    assert data_of(mine) == data_of(theirs)


def test_a_follower_counts_only_what_is_on_its_disk_where_each_append_is_synced(
    engine: Engine, other: Engine
) -> None:
    leader, follower = led(engine), other.partition(flush_messages=1)
    follower.follow(state())
    engine.append(leader, b"one")
    copy(leader, follower)
    assert (follower.fetch_offset, follower.log.next_offset) == (0, 1)
    other.settle()
    assert follower.fetch_offset == 1
    assert isinstance(other.replicas.replication, Keeper)
    assert other.replicas.replication.durable == [follower]


def test_a_follower_goes_on_after_what_it_wrote_before_the_disk_was_full(
    engine: Engine, disk: FaultyDisk, keeper: Keeper
) -> None:
    source = engine.partition("source")
    for _ in range(6):
        engine.append(source, b"x" * 300)
    follower = engine.partition(flush_messages=1, segment_bytes=1024)
    follower.follow(state(leader=ANN))
    disk.fault = failing("write", errno.ENOSPC, after=1)
    with pytest.raises(DiskFull):
        follower.append_replicated(memoryview(data_of(source.read(0, ALL, 0))))
    assert 0 < follower.log.next_offset < 6
    disk.fault = failing("write", errno.ENOSPC, after=ALL)
    engine.replicas.disk_has_room()
    engine.settle()
    assert follower.fetch_offset == follower.log.next_offset
    assert keeper.durable == [follower], "and the fetcher hears of it"


@pytest.mark.parametrize("change", ["cut", "restart_at"])
def test_a_follower_whose_log_cannot_be_changed_for_want_of_room_waits_and_then_goes_on(
    other: Engine, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    follower = other.partition()
    for value in (b"a", b"b", b"c"):
        other.append(follower, value)
    follower.follow(state(leader=ANN, unclean_epoch=5))
    with monkeypatch.context() as full:
        full.setattr(files, "_write_all", _no_room)
        with pytest.raises(DiskFull):
            getattr(follower, change)(2)
    assert other.replicas.is_full
    assert (follower.failure, follower.has_room) == (None, False)
    assert (follower.log.next_offset, follower.high_watermark, follower.fetch_offset) == (3, 3, 3)
    assert follower.read(0, ALL, 0).next_offset == 3
    other.replicas.disk_has_room()
    getattr(follower, change)(2)
    assert (follower.log.next_offset, follower.high_watermark, follower.fetch_offset) == (2, 2, 2)
    assert follower.has_room


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_follower_begins_where_its_leader_begins(other: Engine) -> None:
    follower = other.partition(flush_messages=1)
    follower.follow(state())
    follower.restart_at(40)
    assert (follower.fetch_offset, follower.log.start_offset, follower.high_watermark) == (40,) * 3


def test_a_cut_takes_whole_batches_and_moves_the_mark_down(other: Engine) -> None:
    follower = other.partition()
    for value in (b"a", b"b", b"c"):
        other.append(follower, value)
    follower.follow(state(leader=ANN, unclean_epoch=5))
    follower.cut(1)
    assert (follower.log.next_offset, follower.high_watermark, follower.fetch_offset) == (1, 1, 1)


def committed_in_epoch_3(engine: Engine) -> Partition:
    follower = engine.partition()
    for value in (b"a", b"b", b"c"):
        engine.append(follower, value)
    assert (follower.high_watermark, follower.log.epochs.latest) == (3, 3)
    return follower


@pytest.mark.parametrize("loss", ["cut", "restart_at"])
def test_a_follower_stops_rather_than_to_drop_what_is_committed(other: Engine, loss: str) -> None:
    follower, stopped = committed_in_epoch_3(other), list[Partition]()
    other.replicas.on_stop = stopped.append
    follower.follow(state(leader=ANN))
    with pytest.raises(
        BrokerError, match="broker 2, has only what is below offset 1, and 3"
    ) as told:
        getattr(follower, loss)(1)
    assert told.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.failure is not None
    assert stopped == [follower]
    assert other.metrics.replication.stopped.value == 1
    follower.follow(state(leader=ANN, version=11))
    assert follower.failure is not None, "the same leader in the same epoch"
    follower.follow(state(epoch=6, leader=BOB))
    assert (follower.log.next_offset, follower.high_watermark) == (3, 3)


def test_a_follower_that_stopped_may_be_made_to_lead(other: Engine) -> None:
    follower = committed_in_epoch_3(other)
    follower.follow(state(leader=ANN))
    with pytest.raises(BrokerError):
        follower.cut(0)
    follower.lead(ME, state(epoch=6, isr=(ME,)))
    assert follower.log.next_offset == 3


@pytest.mark.parametrize(
    ("more", "may_cut"),
    [
        ({"unclean_epoch": 5}, True),  # it was committed before that election
        ({"unclean_epoch": 4}, True),
        ({"unclean_epoch": 3}, False),  # and this since: the mark is of an epoch that began with it
        ({"unclean_epoch": 2}, False),
        ({"recovering": True}, True),  # of an earlier version, which did not note the epoch
    ],
)
def test_what_was_committed_before_an_unclean_election_may_be_dropped(
    other: Engine, more: dict[str, Any], may_cut: bool
) -> None:
    follower = committed_in_epoch_3(other)
    follower.follow(state(leader=ANN, **more))
    if may_cut:
        follower.cut(2)
        assert follower.high_watermark == 2
    else:
        with pytest.raises(BrokerError):
            follower.cut(2)


def test_a_directory_that_goes_offline_is_no_reason_to_go_on_under_another_leader(
    other: Engine,
) -> None:
    follower = committed_in_epoch_3(other)
    follower.follow(state(leader=ANN))
    with pytest.raises(BrokerError):
        follower.cut(0)
    follower.fail(BrokerError("offline"))
    follower.follow(state(epoch=6, leader=BOB))
    assert follower.failure is not None


def test_a_follower_lets_consumers_wait_for_what_it_has_not_seen_committed(other: Engine) -> None:
    follower = other.partition()
    other.append(follower, b"a")
    follower.follow(state(leader=ANN))
    assert follower.read(0, ALL, 0).size_bytes
    with pytest.raises(BrokerError) as refused:
        follower.read(5, ALL, 0)
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_follower_that_becomes_alone_commits_what_it_has(engine: Engine) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    partition.lead(ME, PartitionImage(ME, 5, 11, (ME,), (ME,)))
    assert partition.high_watermark == 1


def test_a_replica_starts_over_without_anything(other: Engine) -> None:
    follower = other.partition()
    other.append(follower, b"a")
    follower.follow(state(leader=ANN))
    follower.fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
    other.replicas.start_over(follower)
    assert (follower.failure, follower.log.next_offset, follower.high_watermark) == (None, 0, 0)
