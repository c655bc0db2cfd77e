"""One description serves all versions: what a version lacks is defaulted, dropped or refused, never mixed up."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.fields import Chunk
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.consumer_group_describe import Assignment, Member, TopicPartitions
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
)
from penstock.wire.messages.get_replica_log_info import TopicPartitions as AskedPartitions
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.wire.primitives import finish
from penstock.wire.schema import Message, decode_for, encode_for
from tests.unit.wire.catalogue import all_messages, random_struct


class FileSlice:
    """Stands for bytes that only the kernel will touch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@given(st.sampled_from(all_messages()), st.integers(0, 1 << 32))
def test_what_is_encoded_is_decoded(message: type[Message], seed: int) -> None:
    version = Random(seed).choice(message.versions)
    original = random_struct(message, version, Random(seed))
    assert message.decode(original.encode(version), version) == original


def test_fields_that_are_left_out_have_kafkas_defaults() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.topics) == (-1, 0x7FFFFFFF, [])
    assert request.cluster_id is None
    assert request.replica_state == ReplicaState(replica_id=-1, replica_epoch=-1)


def test_a_field_that_the_version_lacks_is_decoded_as_its_default() -> None:
    request = FetchRequest(max_wait_ms=500, session_id=9, rack_id="r1")
    decoded = FetchRequest.decode(request.encode(4), 4)
    assert (decoded.max_wait_ms, decoded.session_id, decoded.rack_id) == (500, 0, "")


def test_an_ignorable_field_is_dropped_where_the_version_lacks_it() -> None:
    assert FetchRequest(rack_id="r1").encode(4) == FetchRequest().encode(4)


def test_a_field_that_may_not_be_ignored_is_refused_where_the_version_lacks_it() -> None:
    request = FetchRequest(forgotten_topics_data=[ForgottenTopic(topic="t")])
    with pytest.raises(
        ValueError, match=r"FetchRequest\.forgotten_topics_data cannot be sent in version 6"
    ):
        request.encode(6)
    with pytest.raises(ValueError, match="replica_state cannot be sent in version 14"):
        FetchRequest(replica_state=ReplicaState(replica_id=1)).encode(14)


def test_a_null_is_refused_where_the_version_has_none() -> None:
    with pytest.raises(ValueError, match=r"MetadataRequest\.topics cannot be null in version 0"):
        MetadataRequest(topics=None).encode(0)
    assert MetadataRequest(topics=None).encode(1) == b"\xff\xff\xff\xff"


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="FetchRequest v4"):
        FetchRequest(max_wait_ms=1 << 31).encode(4)


@pytest.mark.parametrize("version", [0, 3])
def test_a_string_too_long_for_kafka_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="32767"):
        FindCoordinatorRequest(key="x" * 0x8000).encode(version)


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="FetchRequest has versions 4 to 18, not 3"):
        decode_for(FetchRequest, 3)
    with pytest.raises(ValueError, match="ProduceRequest has versions 0 to 13, not 14"):
        encode_for(ProduceRequest, 14)


def test_constructors_know_their_fields_and_make_new_lists() -> None:
    with pytest.raises(TypeError, match="topicdata"):
        ProduceRequest(topicdata=[])  # type: ignore[call-arg]  # the mistake under test
    first, second = ProduceRequest(), ProduceRequest()
    first.topic_data.append(TopicProduceData())
    assert second.topic_data == []


def test_a_nested_default_is_shared_and_cannot_be_changed() -> None:
    partition = PartitionData()
    with pytest.raises(AttributeError, match="the default LeaderIdAndEpoch is shared"):
        partition.current_leader.leader_id = 3
    partition.current_leader = LeaderIdAndEpoch(leader_id=3)
    assert PartitionData().current_leader == LeaderIdAndEpoch()


def test_a_nested_default_with_a_list_is_not_shared() -> None:
    Member().assignment.topic_partitions.append(TopicPartitions())
    assert Member().assignment == Assignment(topic_partitions=[])


def test_a_tagged_struct_equal_to_its_default_is_not_sent() -> None:
    implied, explicit = FetchRequest(), FetchRequest(replica_state=ReplicaState())
    assert implied.encode(15) == explicit.encode(15)


def test_messages_compare_and_print_by_value() -> None:
    request = FindCoordinatorRequest(key="g", key_type=1)
    assert request == FindCoordinatorRequest(key="g", key_type=1)
    assert request != FindCoordinatorRequest(key="g")
    assert request != "g"
    assert repr(request) == "FindCoordinatorRequest(key='g', key_type=1, coordinator_keys=[])"


def test_messages_carry_their_api() -> None:
    assert ProduceResponse.api_key == 0
    assert (ProduceResponse.versions, ProduceResponse.flexible_from) == (range(14), 9)


def test_codecs_are_compiled_once() -> None:
    assert decode_for(ProduceRequest, 9) is decode_for(ProduceRequest, 9)
    assert encode_for(ProduceRequest, 9) is encode_for(ProduceRequest, 9)


def test_decoded_records_are_a_view_of_the_frame() -> None:
    partition = PartitionProduceData(index=1, records=memoryview(b"batch"))
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    frame = bytearray(request.encode(9))
    decoded = ProduceRequest.decode(frame, 9)
    frame[frame.index(b"batch")] = ord("B")
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert bytes(records) == b"Batch"


@pytest.mark.parametrize("version", [11, 12, 18])
def test_records_go_out_as_the_chunks_that_were_given(version: int) -> None:
    chunks: list[Chunk] = [FileSlice(100_000), memoryview(b"tail"), FileSlice(7)]
    partitions = [PartitionData(records=chunks), PartitionData(records=[FileSlice(0)])]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])
    out: list[Chunk] = []
    encode_for(FetchResponse, version)(response, out)
    assert out[1:4] == chunks
    in_memory = b"".join(c if isinstance(c, (bytes, memoryview)) else bytes(len(c)) for c in out)
    decoded = FetchResponse.decode(in_memory, version)
    sizes = [len(partition.records or b"") for partition in decoded.responses[0].partitions]
    assert sizes == [100_011, 0]


def test_finish_joins_neighbours_that_are_bytes_and_leaves_the_rest() -> None:
    first, second = FileSlice(1), FileSlice(2)
    assert finish([b"a", memoryview(b"b"), first, second, b"c", b"d"]) == [
        b"ab",
        first,
        second,
        b"cd",
    ]
    assert finish([]) == []


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = MetadataRequest().encode(9)
    long_field = b"\x03" + b"\x00\x00" + b"\x05\x80\x01" + bytes(128) + b"\xff\x01\x02ab"
    assert MetadataRequest.decode(plain[:-1] + long_field, 9) == MetadataRequest()


def test_tagged_fields_may_come_in_any_order_and_the_last_of_two_wins() -> None:
    body = ApiVersionsResponse().encode(3)[:-1]
    epoch, zk_ready = b"\x01\x08" + (7).to_bytes(8, "big"), b"\x03\x01\x01"
    newer_epoch = b"\x01\x08" + (8).to_bytes(8, "big")
    decoded = ApiVersionsResponse.decode(body + b"\x03" + zk_ready + epoch + newer_epoch, 3)
    assert decoded == ApiVersionsResponse(finalized_features_epoch=8, zk_migration_ready=True)


def test_markers_of_version_0_are_as_before_varints() -> None:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[2])
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=2,
        transaction_result=True,
        topics=[topic],
        coordinator_epoch=3,
    )
    expected = "00000001 0000000000000001 0002 01 00000001 0001 74 00000001 00000002 00000003"
    assert WriteTxnMarkersRequest(markers=[marker]).encode(0) == bytes.fromhex(expected)


def test_old_produce_versions_are_understood_so_that_they_can_be_refused() -> None:
    data = [PartitionProduceData(index=7, records=memoryview(b"old"))]
    request = ProduceRequest(
        acks=1, timeout_ms=2, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    for version in (0, 1, 2):
        expected = "0001 00000002 00000001 000174 00000001 00000007 00000003 6f6c64"
        assert request.encode(version) == bytes.fromhex(expected)

    refused = PartitionProduceResponse(index=7, error_code=35, base_offset=-1)
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[refused])]
    )
    topics = "00000001 000174 00000001 00000007 0023 ffffffffffffffff"
    assert response.encode(0) == bytes.fromhex(topics)
    assert response.encode(1) == bytes.fromhex(topics + "00000000")
    assert response.encode(2) == bytes.fromhex(topics + "ffffffffffffffff" + "00000000")


def test_how_far_logs_go_is_asked_and_told_as_kip_966_lays_it_out() -> None:
    topic_id = bytes(range(16))
    request = GetReplicaLogInfoRequest(
        broker_id=7, topic_partitions=[AskedPartitions(topic_id=topic_id, partitions=[1, 2])]
    )
    asked = "0000000702" + topic_id.hex() + "0300000001000000020000"
    assert request.encode(0) == bytes.fromhex(asked)
    info = PartitionLogInfo(
        partition=1, last_written_leader_epoch=3, current_leader_epoch=4, log_end_offset=5
    )
    answer = GetReplicaLogInfoResponse(
        broker_epoch=6,
        topic_partition_log_info_list=[
            TopicPartitionLogInfo(topic_id=topic_id, partition_log_info=[info])
        ],
    )
    told = "0000000000000000000000060002" + topic_id.hex()
    told += "020000000100000003000000040000000000000005000001000000"
    assert answer.encode(0) == bytes.fromhex(told)
