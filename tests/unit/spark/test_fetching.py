"""A range is read through whatever happens to its leader; what is gone is an error, or is skipped with a warning."""

from collections.abc import Callable, Iterator

import pytest

from penstock.client.connection import Address
from penstock.client.errors import ClientError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID, TopicPartition
from penstock.records.batch import split_batches
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.spark.cluster import Location
from penstock.spark.fetching import RangeReader
from penstock.spark.offsets import DataLoss, OffsetRange
from penstock.spark.options import Fetching, parse_batch
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.fake_broker import HANG_UP, FakeBroker, in_a_thread

T0 = TopicPartition("t", 0)
ID, OTHER_ID = b"i" * 16, b"o" * 16


def batch(base: int, count: int = 10, size_bytes: int = 10) -> bytes:
    records = [Record(base + n, 0, None, b"x" * size_bytes) for n in range(count)]
    return bytes(build_batch(records, base_offset=base))


class Leader:
    """A fake broker that leads t-0 and has the offsets from `start` up to `end`, in batches of ten."""

    def __init__(self, start: int = 0, end: int = 100, topic_id: bytes = ID) -> None:
        self.start, self.end, self.topic_id = start, end, topic_id
        self.exists = True
        self.per_fetch = 2
        self.answers: list[object] = []  # that come first, once each
        self.nearer: Address | None = None  # of broker 2, for who is of a rack
        self.positions: list[int] = []
        self.sizes: list[int] = []
        self.broker = FakeBroker()
        self.broker.on(FetchRequest, self._fetch)
        self.broker.on(MetadataRequest, lambda _: self._metadata())
        self.broker.on(ListOffsetsRequest, self._offsets)

    def _fetch(self, request: object) -> object:
        assert isinstance(request, FetchRequest)
        asked = request.topics[0].partitions[0]
        self.positions.append(asked.fetch_offset)
        self.sizes.append(asked.partition_max_bytes)
        if self.answers:
            answer = self.answers.pop(0)
            return answer() if callable(answer) else answer
        if request.rack_id == "east" and self.nearer is not None:
            return fetched(preferred=2)
        if not self.start <= asked.fetch_offset <= self.end:
            return fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        first = asked.fetch_offset // 10 * 10
        last = min(first + 10 * self.per_fetch, self.end)
        return fetched(b"".join(batch(base) for base in range(first, last, 10)))

    def _metadata(self) -> MetadataResponse:
        host, port = self.broker.address
        topic = MetadataResponseTopic(
            name="t", topic_id=self.topic_id, partitions=[MetadataResponsePartition(leader_id=1)]
        )
        if not self.exists:
            topic = MetadataResponseTopic(
                name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=[]
            )
        brokers = [MetadataResponseBroker(node_id=1, host=host, port=port)]
        if self.nearer is not None and self.nearer.port:
            host, port = self.nearer
            brokers.append(MetadataResponseBroker(node_id=2, host=host, port=port))
        return MetadataResponse(brokers=brokers, controller_id=1, topics=[topic])

    def _offsets(self, request: object) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        place = request.topics[0].partitions[0].timestamp
        row = ListOffsetsPartitionResponse(offset=self.start if place == -2 else self.end)
        topic = ListOffsetsTopicResponse(name="t", partitions=[row])
        return ListOffsetsResponse(topics=[topic])


def fetched(
    records: bytes = b"",
    error: ErrorCode = ErrorCode.NONE,
    aborted: list[AbortedTransaction] | None = None,
    preferred: int = -1,
) -> FetchResponse:
    data = PartitionData(
        error_code=error,
        high_watermark=100,
        records=records,
        aborted_transactions=aborted,
        preferred_read_replica=preferred,
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    with in_a_thread(made.broker):
        yield made


def how(leader: Leader, **options: str) -> Fetching:
    return parse_batch(
        {
            "kafka.bootstrap.servers": str(leader.broker.address),
            "subscribe": "t",
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    ).fetching


def offsets(
    leader: Leader,
    start: int = 0,
    end: int = 100,
    *,
    address: Address | None = None,
    topic_id: bytes = ID,
    **options: str,
) -> list[int]:
    """The base offsets of the batches that come and are in the range."""
    location = Location(address or leader.broker.address, topic_id)
    found: list[int] = []
    with RangeReader(OffsetRange(T0, start, end), location, how(leader, **options)) as fetches:
        for one in fetches:
            found += [header.base_offset for header, _ in split_batches(one.records)]
    return [offset for offset in found if offset < end]


def test_a_range_is_read_to_its_end_and_no_further(leader: Leader) -> None:
    assert offsets(leader, 0, 55) == [0, 10, 20, 30, 40, 50]
    assert leader.positions == [0, 20, 40]


def test_a_range_may_start_within_a_batch(leader: Leader) -> None:
    assert offsets(leader, 25, 41) == [20, 30, 40]
    assert leader.positions == [25, 40]


def test_a_connection_that_breaks_is_made_again(leader: Leader) -> None:
    leader.answers = [fetched(batch(0)), HANG_UP, HANG_UP]

    assert offsets(leader, 0, 30) == [0, 10, 20]
    assert leader.positions == [0, 10, 10, 10]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_the_leader_is_found_anew_after_an_error_that_passes(
    leader: Leader, code: ErrorCode
) -> None:
    leader.answers = [fetched(error=code)]

    assert offsets(leader, 0, 10) == [0]
    assert leader.broker.count(MetadataRequest) == 1


def test_a_leader_that_moved_before_the_task_began_is_found(leader: Leader) -> None:
    nobody = Address("127.0.0.1", 1)

    assert offsets(leader, 0, 10, address=nobody) == [0]


def test_a_replica_of_the_same_rack_is_read_from(leader: Leader) -> None:
    near = Leader()
    with in_a_thread(near.broker):
        leader.nearer = near.broker.address

        assert offsets(leader, 0, 60, kafka_client_rack="east") == [0, 10, 20, 30, 40, 50]
        assert offsets(leader, 0, 20, kafka_client_rack="west") == [0, 10]

    assert (leader.positions, near.positions) == ([0, 0], [0, 20, 40])


@pytest.mark.parametrize(
    ("has_upto", "failures"),
    [
        (20, []),
        (15, []),
        (60, [HANG_UP]),
        (60, [fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]),
    ],
    ids=["nothing yet", "out of range", "gone", "no replica any more"],
)
def test_the_leader_gives_what_the_nearer_replica_does_not(
    leader: Leader, has_upto: int, failures: list[object]
) -> None:
    near = Leader(end=has_upto)
    near.answers = [fetched(batch(0) + batch(10)), *failures]
    with in_a_thread(near.broker):
        leader.nearer = near.broker.address

        assert offsets(leader, 0, 60, kafka_client_rack="east") == [0, 10, 20, 30, 40, 50]

    assert leader.positions == [0, 20, 40], "and is not left again"


def test_a_replica_that_nobody_knows_is_not_looked_for_again(leader: Leader) -> None:
    leader.nearer = Address("127.0.0.1", 0)

    assert offsets(leader, 0, 30, kafka_client_rack="east") == [0, 10, 20]
    assert leader.positions == [0, 0, 20]


def test_an_error_that_stays_is_raised(leader: Leader) -> None:
    leader.answers = [fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]

    with pytest.raises(ClientError, match="t-0: topic authorization failed"):
        offsets(leader)


def test_patience_ends_with_the_reason(leader: Leader) -> None:
    leader.end = 10  # of a range that ends later

    with pytest.raises(ClientError, match="t-0: nothing came in 1 ms: there is no record at off"):
        offsets(leader, 10, 20, kafkaConsumer_pollTimeoutMs="1")


def test_offsets_that_are_gone_are_an_error(leader: Leader) -> None:
    leader.start = 40

    with pytest.raises(DataLoss) as caught:
        offsets(leader, 0, 100)

    assert str(caught.value) == (
        "t-0: offsets 0 to 39 cannot be read any more, the log starts at offset 40 now; "
        "to go on without them, set the option failOnDataLoss to false"
    )


def test_offsets_that_are_gone_are_skipped_when_that_is_allowed(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.start = 40

    assert offsets(leader, 0, 60, failOnDataLoss="false") == [40, 50]
    assert "t-0: offsets 0 to 39 cannot be read any more" in caplog.text


@pytest.mark.parametrize(("start", "end"), [(0, 40), (200, 210)])
def test_a_range_of_which_nothing_is_left_gives_nothing(
    leader: Leader, start: int, end: int
) -> None:
    leader.start = 40

    assert offsets(leader, start, end, failOnDataLoss="false") == []
    with pytest.raises(DataLoss, match="the log has offsets 40 to 99 now"):
        offsets(leader, start, end)


def made_again(leader: Leader) -> Callable[[], FetchResponse]:
    def answer() -> FetchResponse:
        leader.topic_id = OTHER_ID
        return fetched(error=ErrorCode.UNKNOWN_TOPIC_ID)

    return answer


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(leader: Leader) -> None:
    leader.answers = [made_again(leader), made_again(leader)]

    assert offsets(leader, 0, 40, failOnDataLoss="false") == []
    leader.topic_id = ID
    with pytest.raises(DataLoss, match="topic 't' was deleted and created again"):
        offsets(leader, 0, 40)


def test_a_topic_that_is_gone_is_a_loss(leader: Leader) -> None:
    leader.exists = False
    leader.answers = [fetched(error=ErrorCode.UNKNOWN_TOPIC_ID)]

    with pytest.raises(DataLoss, match=r"t-0: offsets 0 to 39 .* topic 't' was deleted"):
        offsets(leader, 0, 40)


def test_brokers_without_topic_ids_are_asked_by_name(leader: Leader) -> None:
    assert offsets(leader, 0, 10, topic_id=NO_TOPIC_ID) == [0]

    (version,) = {h.api_version for h, m in leader.broker.requests if isinstance(m, FetchRequest)}
    assert version == 12


def test_an_old_broker_is_spoken_to_in_its_own_version(leader: Leader) -> None:
    leader.broker.on(FetchRequest, leader._fetch, versions=range(0, 5))
    leader.broker.speak_api_versions_up_to(0)

    assert offsets(leader, 0, 10) == [0]


def test_a_batch_larger_than_asked_for_is_asked_for_again(leader: Leader) -> None:
    leader.answers = [fetched(batch(0, size_bytes=100)[:500])]

    assert offsets(leader, 0, 10, kafka_max_partition_fetch_bytes="500") == [0]
    assert leader.sizes == [500, 1000]


def test_old_formats_are_refused(leader: Leader) -> None:
    leader.answers = [fetched(batch(0)[:16] + b"\x01" + batch(0)[17:])]

    with pytest.raises(BrokerError, match="t-0 has records of message format 1"):
        offsets(leader)


def test_aborted_transactions_come_with_their_records(leader: Leader) -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=3)]
    leader.answers = [fetched(batch(0), aborted=aborted)]
    location = Location(leader.broker.address, ID)
    committed = how(leader, kafka_isolation_level="read_committed")

    with RangeReader(OffsetRange(T0, 0, 10), location, committed) as fetches:
        found = [one.aborted for one in fetches]

    assert found == [[(7, 3)]]
    (asked,) = (m for _, m in leader.broker.requests if isinstance(m, FetchRequest))
    assert asked.isolation_level == 1


def test_a_reader_that_is_left_early_ends(leader: Leader) -> None:
    location = Location(leader.broker.address, ID)

    with RangeReader(OffsetRange(T0, 0, 100), location, how(leader)) as fetches:
        next(iter(fetches))

    assert len(leader.positions) <= 3


def test_no_more_is_fetched_than_two_buffers_hold(leader: Leader) -> None:
    location = Location(leader.broker.address, ID)
    seen = []

    with RangeReader(OffsetRange(T0, 0, 100), location, how(leader)) as fetches:
        for one in fetches:
            seen.append(one.position)
            assert len(leader.positions) <= len(seen) + 1

    assert seen == [0, 20, 40, 60, 80]
