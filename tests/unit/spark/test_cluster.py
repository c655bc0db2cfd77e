"""Questions are answered for topics that exist, and asked again while a broker is away for a moment."""

from collections.abc import Iterator

import pytest

from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.cluster import Cluster, Location
from penstock.spark.options import Assign, Fetching, Pattern, Subscribe, parse_batch
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

PARTITIONS = {"orders": 2, "orders-eu": 1, "__consumer_offsets": 1}


def metadata(broker: FakeBroker, request: object) -> MetadataResponse:
    assert isinstance(request, MetadataRequest)
    names = PARTITIONS if request.topics is None else [topic.name or "" for topic in request.topics]
    host, port = broker.address
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host=host, port=port)],
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=name,
                topic_id=name.encode()[:8].ljust(16, b"."),
                is_internal=name.startswith("__"),
                error_code=0 if name in PARTITIONS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                partitions=[
                    MetadataResponsePartition(partition_index=index, leader_id=1)
                    for index in range(PARTITIONS.get(name, 0))
                ],
            )
            for name in names
        ],
    )


def list_offsets(request: object) -> ListOffsetsResponse:
    """Each partition starts at 5, ends at 50, and has nothing undecided before 40."""
    assert isinstance(request, ListOffsetsRequest)
    end = 40 if request.isolation_level else 50
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=row.partition_index,
                        offset={-2: 5, -1: end}.get(row.timestamp, -1),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    made = FakeBroker()
    made.on(MetadataRequest, lambda request: metadata(made, request))
    made.on(ListOffsetsRequest, list_offsets)
    with in_a_thread(made):
        yield made


def how(address: object, **options: str) -> Fetching:
    base = {"kafka.bootstrap.servers": str(address), "subscribe": "t"}
    texts = {name.replace("__", "."): value for name, value in options.items()}
    return parse_batch({**base, **texts}).fetching


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    made = Cluster(how(broker.address))
    yield made
    made.close()


def places(*names: str) -> set[TopicPartition]:
    return {TopicPartition(name, index) for name in names for index in range(PARTITIONS[name])}


def test_topics_are_found_by_name_and_by_pattern(cluster: Cluster, broker: FakeBroker) -> None:
    named = cluster.partitions(Subscribe(("orders",)))

    assert named.keys() == places("orders")
    assert named[TopicPartition("orders", 0)] == Location(broker.address, b"orders..........")
    assert cluster.partitions(Pattern("rder")).keys() == places("orders", "orders-eu")
    assert cluster.partitions(Pattern("^orders$")).keys() == places("orders")


def test_the_brokers_own_topics_match_no_pattern(cluster: Cluster) -> None:
    assert cluster.partitions(Pattern("offsets")) == {}
    assert cluster.partitions(Subscribe(("__consumer_offsets",)))


def test_a_topic_that_does_not_exist_is_named_with_the_remedy(cluster: Cluster) -> None:
    with pytest.raises(ClientError, match="create it with: penstock topic create oders"):
        cluster.partitions(Subscribe(("orders", "oders")))
    assert cluster.partitions(Subscribe(("orders", "oders")), but_for=["oders"])


def test_assigned_partitions_must_exist(cluster: Cluster) -> None:
    there, absent = TopicPartition("orders", 1), TopicPartition("orders", 7)

    assert cluster.partitions(Assign((there,))).keys() == {there}
    with pytest.raises(ClientError, match="topic 'orders' has no partition 7, which assign names"):
        cluster.partitions(Assign((there, absent)))


def test_the_ends_depend_on_what_may_be_read(cluster: Cluster, broker: FakeBroker) -> None:
    wanted = places("orders")
    committed = Cluster(how(broker.address, kafka__isolation__level="read_committed"))

    assert cluster.earliest(wanted) == dict.fromkeys(wanted, 5)
    assert cluster.latest(wanted) == dict.fromkeys(wanted, 50)
    assert committed.latest(wanted) == dict.fromkeys(wanted, 40)
    assert cluster.at_timestamps(dict.fromkeys(wanted, 7)) == dict.fromkeys(wanted, -1)
    assert cluster.latest([]) == {}
    committed.close()


def test_a_broken_connection_is_made_again(cluster: Cluster, broker: FakeBroker) -> None:
    answers = [HANG_UP, HANG_UP]
    broker.on(
        MetadataRequest, lambda request: answers.pop() if answers else metadata(broker, request)
    )

    assert cluster.partitions(Subscribe(("orders",))).keys() == places("orders")


def test_where_no_broker_is_that_is_said_soon() -> None:
    nowhere = Cluster(how("127.0.0.1:1"))

    with pytest.raises(ClientError, match=r"cannot reach 127\.0\.0\.1:1: connection refused"):
        nowhere.partitions(Subscribe(("orders",)))
    nowhere.close()


def test_an_address_that_is_none_names_its_option() -> None:
    nowhere = Cluster(how("host:port"))
    with pytest.raises(ClientError, match=r"option kafka\.bootstrap\.servers: expected HOST:PORT"):
        nowhere.partitions(Subscribe(("orders",)))
    nowhere.close()
