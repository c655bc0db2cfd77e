"""A mirror takes what its source has and nothing else, until it is promoted."""

from functools import partial
from typing import Any

import pytest

from penstock.broker.coordinators.markers import Ending
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import PartitionImage
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.feature_levels import LevelChange, UpgradeType
from penstock.metadata.rules.promotions import end_promotion
from penstock.model.errors import BrokerError, ErrorCode, InvalidConfig
from penstock.model.ids import TopicPartition
from penstock.records.batch import stamp
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.transactions.state import Producer
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorPartition,
    MirrorPartitionResult,
    MirrorTopic,
    MirrorTopicResult,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.context import BROKER_ID, BrokerContext
from tests.support.frames import counted_buffers
from tests.support.wired import door_to

SOURCE = "penstock.mirror.source"
MANY = 300  # partitions
OTHER = 77  # a broker
DATA_OF = {"producer_epoch": 0, "transactional": True}


def batch(base_offset: int, count: int = 1, **fields: Any) -> memoryview:
    records = [Record(number, 1_700_000_000_000, b"k", b"v") for number in range(count)]
    made = memoryview(build_batch(records, **fields))
    stamp(made, base_offset, 77)
    return made


def of_transaction(base_offset: int, producer: int, sequence: int = 0) -> memoryview:
    return batch(base_offset, producer_id=producer, base_sequence=sequence, **DATA_OF)


def tell(
    broker: BrokerContext,
    records: memoryview | None,
    *,
    topic_id: bytes = bytes(16),
    continues_at: int = 0,
) -> MirrorTopicResult:
    partition = MirrorPartition(index=0, continues_at=continues_at, records=records)
    topic = MirrorTopic(name="copy", topic_id=topic_id, partitions=[partition])
    (result,) = broker.ask(MirrorAppendRequest(timeout_ms=10_000, topics=[topic])).topics
    assert isinstance(result, MirrorTopicResult)
    return result


def mirror(
    broker: BrokerContext, *batches: memoryview, topic_id: bytes = bytes(16)
) -> MirrorPartitionResult:
    joined = memoryview(bytearray(b"".join(batches)))
    return tell(broker, joined, topic_id=topic_id).partitions[0]


def to_many(broker: BrokerContext) -> MirrorAppendRequest:
    broker.create_topic("copy", MANY, {SOURCE: "copy"})
    partitions = [MirrorPartition(index=i, records=batch(0)) for i in range(MANY)]
    return MirrorAppendRequest(
        timeout_ms=10_000, topics=[MirrorTopic(name="copy", partitions=partitions)]
    )


def test_the_frame_of_many_partitions_is_not_kept_until_they_are_committed(
    broker: BrokerContext,
) -> None:
    request = to_many(broker)
    replicas = (BROKER_ID, OTHER)
    led = PartitionImage(BROKER_ID, 4, 9, replicas, replicas)
    for index in range(MANY):
        broker.call(partial(broker.partition("copy", index).lead, BROKER_ID, led))
    with door_to(broker) as door, counted_buffers() as buffers:
        client = door.connect()
        client.send(request, 0)
        while not broker.partition("copy", MANY - 1).log.next_offset:
            client.tick(1)
        client.tick()
        assert client.received() == []
        assert buffers.made
        assert not buffers.alive()


def test_a_request_of_many_partitions_is_appended_in_slices(broker: BrokerContext) -> None:
    request = to_many(broker)
    with door_to(broker) as door:
        client = door.connect()
        client.send(request, 0)
        (topic,) = client.receive_as(MirrorAppendResponse, 0)[1].topics
    assert [(it.index, it.error_code) for it in topic.partitions] == [(i, 0) for i in range(MANY)]
    assert {it.high_watermark for it in topic.partitions} == {1}


def produce(broker: BrokerContext, **fields: Any) -> PartitionProduceResponse:
    data = PartitionProduceData(index=0, records=batch(0, **fields))
    topic = TopicProduceData(name="copy", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    (result,) = broker.ask(request, 9).responses[0].partition_responses
    assert isinstance(result, PartitionProduceResponse)
    return result


def alter(broker: BrokerContext, *ops: ConfigOp, topic: str = "copy") -> None:
    broker.run(broker.cluster.alter_configs(Resource.TOPIC, topic, ops))


def promote(broker: BrokerContext) -> None:
    alter(broker, ConfigOp(SOURCE, Op.DELETE))


def promotion_of(broker: BrokerContext) -> int:
    return broker.cluster.image.topics["copy"].promotion


@pytest.fixture
def copy(broker: BrokerContext) -> BrokerContext:
    broker.create_topic("copy", config={SOURCE: "east"})
    return broker


def test_batches_keep_their_offsets_and_are_taken_once(copy: BrokerContext) -> None:
    first = mirror(copy, batch(0, 3), batch(10, 2))
    again = mirror(copy, batch(0, 3), batch(10, 2), batch(12))
    assert (first.error_code, first.log_end_offset, first.high_watermark) == (0, 12, 12)
    assert (again.error_code, again.log_end_offset, again.high_watermark) == (0, 13, 13)
    assert copy.partition("copy").log.epochs.latest == copy.partition("copy").leader_epoch


def test_without_records_it_says_how_far_it_is(copy: BrokerContext) -> None:
    mirror(copy, batch(500, 3))
    told = tell(copy, None)
    row = told.partitions[0]
    assert (told.mirror_source, told.promotion, row.error_code) == ("east", 0, 0)
    assert (row.log_start_offset, row.log_end_offset, row.high_watermark) == (500, 503, 503)


def test_what_does_not_continue_the_log_is_refused_by_name(copy: BrokerContext) -> None:
    mirror(copy, batch(0, 3))
    damaged = batch(3)
    damaged[-1] ^= 1
    straddling, broken = mirror(copy, batch(2, 2)), mirror(copy, damaged)
    assert straddling.error_code == ErrorCode.INVALID_RECORD
    assert "not a copy" in (straddling.error_message or "")
    assert broken.error_code == ErrorCode.CORRUPT_MESSAGE
    assert copy.partition("copy").log.next_offset == 3


def test_a_hole_is_refused_by_name(copy: BrokerContext) -> None:
    mirror(copy, batch(0, 3))
    row = tell(copy, batch(9), continues_at=7).partitions[0]
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "what comes before 7 was not sent" in (row.error_message or "")
    assert tell(copy, batch(9), continues_at=3).partitions[0].error_code == 0


def test_a_topic_that_was_created_anew_is_another_one(copy: BrokerContext) -> None:
    topic_id = copy.cluster.image.topics["copy"].id
    assert mirror(copy, batch(0), topic_id=topic_id).error_code == 0
    refused = mirror(copy, batch(1), topic_id=bytes(range(16)))
    assert refused.error_code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_only_brokers_and_mirrors_may(copy: BrokerContext) -> None:
    copy.forbid(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    assert mirror(copy, batch(0)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_topic_that_is_no_mirror_takes_none(broker: BrokerContext) -> None:
    broker.create_topic("copy")
    refused = mirror(broker, batch(0))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "penstock.mirror.source is not set" in (refused.error_message or "")
    assert tell(broker, None).mirror_source is None


@pytest.mark.parametrize(
    "fields", [{}, {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}]
)
def test_clients_cannot_write_to_a_mirror(copy: BrokerContext, fields: dict[str, int]) -> None:
    refused = produce(copy, **fields)
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "remove penstock.mirror.source" in (refused.error_message or "")
    alter(copy, ConfigOp(SOURCE, Op.SET, "west"))
    assert produce(copy).error_code == ErrorCode.POLICY_VIOLATION


def test_coordinators_of_this_cluster_end_nothing_in_a_mirror(copy: BrokerContext) -> None:
    mirror(copy, of_transaction(0, 5))
    markers = copy.services.transactions.markers
    ending = Ending(Producer(5, 0), True, 0)
    name = TopicPartition("copy", 0)
    with pytest.raises(BrokerError) as refused:
        copy.call(lambda: markers.write(name, ending, markers.build(ending)))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert copy.partition("copy").last_stable_offset == 0


def test_internal_topics_are_no_mirrors(broker: BrokerContext) -> None:
    broker.run(broker.services.groups.coordinator_of("a-group"))
    with pytest.raises(InvalidConfig, match="cannot be a mirror"):
        alter(broker, ConfigOp(SOURCE, Op.SET, "east"), topic="__consumer_offsets")


def test_a_cluster_that_is_not_all_of_this_version_has_no_mirrors(copy: BrokerContext) -> None:
    down = LevelChange("mirror.version", 0, UpgradeType.UNSAFE_DOWNGRADE)
    copy.run(copy.cluster.update_features([down]))
    try:
        with pytest.raises(InvalidConfig, match=r"features upgrade --to mirror.version=1"):
            alter(copy, ConfigOp(SOURCE, Op.SET, "west"))
        spec = TopicSpec("other", 1, config={SOURCE: "east"})
        (refused,) = copy.run(copy.cluster.create_topics([spec]))
        assert isinstance(refused, InvalidConfig)
        assert mirror(copy, batch(0)).error_code == ErrorCode.UNSUPPORTED_VERSION
        told = copy.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        assert MirrorAppendRequest.api_key not in {api.api_key for api in told.api_keys}
        promote(copy)
    finally:
        up = LevelChange("mirror.version", 1, UpgradeType.UPGRADE)
        copy.run(copy.cluster.update_features([up]))


# Promotion -------------------------------------------------------------------------------------


def test_a_client_writes_after_promotion_and_finds_no_trace_of_the_source(
    copy: BrokerContext,
) -> None:
    mirror(copy, of_transaction(0, 5), of_transaction(1, 6))
    promote(copy)
    assert promotion_of(copy) > 0

    written = produce(copy, producer_id=5, producer_epoch=0, base_sequence=3)

    partition = copy.partition("copy")
    assert (written.error_code, written.base_offset) == (0, 5)  # after two markers and one more
    assert partition.last_stable_offset == 6
    assert [it.producer_id for it in partition.log.aborted_transactions(0, 2)] == [5, 6]
    assert [producer_id for producer_id, _ in partition.log.producers] == [5]
    assert mirror(copy, batch(6)).error_code == ErrorCode.POLICY_VIOLATION


def test_it_is_done_once_and_also_when_nobody_writes(copy: BrokerContext) -> None:
    mirror(copy, of_transaction(0, 5))
    promote(copy)
    number = promotion_of(copy)
    for _ in range(2):
        told = tell(copy, None)
        assert (told.mirror_source, told.promotion) == (None, number)
        assert told.partitions[0].log_end_offset == told.partitions[0].high_watermark == 3
    assert copy.partition("copy").last_stable_offset == 3
    assert produce(copy).base_offset == 3


def test_when_all_leaders_are_done_it_is_an_ordinary_topic(copy: BrokerContext) -> None:
    mirror(copy, batch(0))
    promote(copy)
    number = promotion_of(copy)
    produce(copy)

    async def ended() -> None:
        image = copy.cluster.image
        await copy.cluster._committer.commit_all(lambda: end_promotion(image, "copy", number))

    copy.run(ended())
    assert promotion_of(copy) == 0
    assert copy.replicas.topic("copy").mirror is None
    assert produce(copy).error_code == 0
    assert end_promotion(copy.cluster.image, "copy", number) == []


def test_other_settings_change_nothing_about_it(copy: BrokerContext) -> None:
    promote(copy)
    number = promotion_of(copy)
    alter(copy, ConfigOp("retention.ms", Op.SET, "1000"))
    assert promotion_of(copy) == number
    alter(copy, ConfigOp(SOURCE, Op.SET, "west"))
    assert promotion_of(copy) == 0
    assert mirror(copy, batch(0)).error_code == 0
    copy.run(copy.cluster.replace_configs(Resource.TOPIC, "copy", []))
    assert promotion_of(copy) > number, "the old way to change settings promotes as well"
    assert produce(copy).error_code == 0


def test_an_empty_source_is_none(broker: BrokerContext) -> None:
    broker.create_topic("copy", config={SOURCE: ""})
    assert produce(broker).error_code == 0
    alter(broker, ConfigOp(SOURCE, Op.SET, "east"))
    assert produce(broker).error_code == ErrorCode.POLICY_VIOLATION
    alter(broker, ConfigOp(SOURCE, Op.SET, ""))
    assert promotion_of(broker) > 0
    assert produce(broker).error_code == 0
