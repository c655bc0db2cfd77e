import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode, StorageFault
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.support.context import BrokerContext

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
EARLIEST_PENDING_UPLOAD = -6


def ask(
    broker: BrokerContext,
    timestamp: int,
    topic: str = "orders",
    index: int = 0,
    *,
    version: int = 11,
    isolation: int = 0,
    epoch: int = -1,
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(
        isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    (answered,) = broker.ask(request, version).topics
    (result,) = answered.partitions
    assert isinstance(result, ListOffsetsPartitionResponse)
    return result


def append_at(broker: BrokerContext, *times_ms: int, **fields: int | bool) -> None:
    """One batch, a record for each time after the clock's."""
    now_ms = broker.services.clock.wall_ms()
    records = [Record(i, now_ms + time_ms, None, b"v", ()) for i, time_ms in enumerate(times_ms)]
    batch = memoryview(bytearray(build_batch(records, **fields)))  # type: ignore[arg-type] # names of integers only
    transactional = bool(fields.get("transactional"))
    broker.call(
        lambda: broker.partition("orders").append(batch, now_ms=now_ms, transactional=transactional)
    )


def found(result: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    return result.error_code, result.offset, result.timestamp


# The ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_tells_both_ends(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=5)
    broker.call(lambda: broker.partition("orders").delete_records_before(2))
    earliest = ask(broker, EARLIEST, version=version)
    latest = ask(broker, LATEST, version=version)
    assert (found(earliest), found(latest)) == ((0, 2, -1), (0, 5, -1))
    assert [r.leader_epoch for r in (earliest, latest)] == ([0, 0] if version >= 4 else [-1, -1])


def test_a_partition_that_was_never_written_has_both_ends_at_0(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert found(ask(broker, EARLIEST)) == found(ask(broker, LATEST)) == (0, 0, -1)
    assert found(ask(broker, MAX_TIMESTAMP)) == found(ask(broker, 0)) == (0, -1, -1)


def test_what_is_not_committed_is_beyond_the_end_for_committed_readers(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    append_at(broker, 0)
    append_at(broker, 5, transactional=True, producer_id=3, producer_epoch=0, base_sequence=0)
    assert ask(broker, LATEST).offset == 2
    assert ask(broker, LATEST, isolation=1).offset == 1
    now_ms = broker.services.clock.wall_ms()
    assert ask(broker, now_ms + 5).offset == 1
    assert ask(broker, now_ms + 5, isolation=1).offset == -1
    assert ask(broker, MAX_TIMESTAMP, isolation=1).offset == -1


# Timestamps ------------------------------------------------------------------------------------


def test_a_timestamp_is_found_exactly_also_inside_a_batch(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    now_ms = broker.services.clock.wall_ms()
    append_at(broker, 0, 10, 20)
    append_at(broker, 30, 25)
    for asked, expected in ((0, (0, 0)), (1, (1, 10)), (10, (1, 10)), (11, (2, 20)), (26, (3, 30))):
        offset, time_ms = expected
        assert found(ask(broker, now_ms + asked)) == (0, offset, now_ms + time_ms)
    assert found(ask(broker, now_ms + 31)) == (0, -1, -1), "there is none so late"
    assert found(ask(broker, 0)) == (0, 0, now_ms)
    assert found(ask(broker, MAX_TIMESTAMP)) == (0, 3, now_ms + 30)


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
)
def test_special_timestamps_have_a_meaning_since_some_version(
    broker: BrokerContext, timestamp: int, since: int
) -> None:
    broker.create_topic("orders")
    append_at(broker, 0, 5)
    for version in range(1, 12):
        code = ask(broker, timestamp, version=version).error_code
        assert code == (ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION)


def test_special_timestamps_tell_of_what_is_here_and_what_is_tiered(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    append_at(broker, 0, 5)
    broker.call(lambda: broker.partition("orders").delete_records_before(1))
    assert found(ask(broker, EARLIEST_LOCAL)) == (0, 1, -1)
    assert found(ask(broker, LATEST_TIERED)) == (0, -1, -1), "nothing is"
    assert found(ask(broker, EARLIEST_PENDING_UPLOAD)) == (0, -1, -1), "nothing waits for it"


@pytest.mark.parametrize("timestamp", [-7, -100])
def test_other_negative_timestamps_are_refused(broker: BrokerContext, timestamp: int) -> None:
    broker.create_topic("orders")
    assert ask(broker, timestamp).error_code == ErrorCode.UNSUPPORTED_VERSION


# Refusals --------------------------------------------------------------------------------------


def test_each_partition_is_refused_by_itself(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    asked = [ListOffsetsPartition(partition_index=i, timestamp=LATEST) for i in (1, 0, -1)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=asked)])
    (topic,) = broker.ask(request, 10).topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [p.error_code for p in topic.partitions] == [unknown, 0, unknown]
    assert ask(broker, LATEST, "absent").error_code == unknown


def test_the_epoch_is_checked_where_one_is_given(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.partition("orders").leader_epoch = 4
    assert ask(broker, LATEST, epoch=4).error_code == ErrorCode.NONE
    assert ask(broker, LATEST, epoch=3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(broker, LATEST, epoch=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_it_needs_the_right_to_describe(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC)
    for topic in ("orders", "absent"):
        assert ask(broker, LATEST, topic).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_disk_that_fails_refuses_that_partition(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    append_at(broker, 0)
    faults: list[StorageFault] = []

    def broken(*_: object) -> None:
        raise StorageFault("read at 0 failed")

    monkeypatch.setattr(type(broker.partition("orders").log), "search_timestamp", broken)
    monkeypatch.setattr(broker.replicas, "disk_failed", faults.append)
    assert ask(broker, 5).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(faults) == 1


def test_an_offset_carries_the_epoch_in_which_it_was_written(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    append_at(broker, 0)
    broker.partition("orders").leader_epoch = 7
    append_at(broker, 5)
    now_ms = broker.services.clock.wall_ms()
    asked = (EARLIEST, now_ms, now_ms + 5, LATEST)
    assert [ask(broker, timestamp).leader_epoch for timestamp in asked] == [0, 0, 7, 7]
