"""The APIs of groups, in every version: what is asked is translated, refused where it must be, and answered."""

from typing import Any

import pytest

from penstock.groups.consumer import ConsumerGroup
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import ErrorCode
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.delete_groups import DeleteGroupsRequest
from penstock.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.support.context import BrokerContext
from tests.support.groups import (
    GROUP,
    commit_codes,
    commit_request,
    committed,
    find,
    heartbeat_request,
    join_request,
    stable_group,
    sync_request,
)


def beat(broker: BrokerContext, member: str, epoch: int, **more: Any) -> Any:
    fields: dict[str, Any] = {"rebalance_timeout_ms": -1, **more}
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 30_000,
            "topic_partitions": [],
            "subscribed_topic_names": ["t"],
            **more,
        }
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=member, member_epoch=epoch, **fields
    )
    return broker.ask(request)


# Membership --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_in_every_version(broker: BrokerContext, version: int) -> None:
    find(broker)
    joined = broker.ask(join_request(), version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = broker.ask(join_request(member=joined.member_id), version)

    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    assert joined.member_id == joined.leader
    assert joined.member_id.startswith("test-")
    assert [m.member_id for m in joined.members] == [joined.member_id]


@pytest.mark.parametrize(("timeout_ms", "version"), [(-1, 0), (0, 3), (-2_000_000, 3)])
def test_without_a_time_for_a_rebalance_a_member_has_its_session(
    broker: BrokerContext, timeout_ms: int, version: int
) -> None:
    find(broker)
    broker.ask(join_request(session_timeout_ms=12_345, rebalance_timeout_ms=timeout_ms), version)
    (group,) = broker.services.groups.groups()

    assert [m.rebalance_timeout_ms for m in group.members.values()] == [12_345]  # type: ignore[union-attr] # it is a classic group


def test_a_long_name_makes_no_id_that_could_not_be_written(broker: BrokerContext) -> None:
    find(broker)
    joined = broker.ask(join_request(group_instance_id="x" * 32_750), 5)
    synced = broker.ask(sync_request(joined.member_id, 1, {joined.member_id: b"work"}))

    assert (joined.error_code, synced.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert len(joined.member_id) < 300


@pytest.mark.parametrize("version", range(6))
def test_a_member_syncs_in_every_version(broker: BrokerContext, version: int) -> None:
    find(broker)
    joined = broker.ask(join_request(), 3)
    request = sync_request(joined.member_id, 1, {joined.member_id: b"work"})
    if version < 5:
        request.protocol_type = request.protocol_name = None

    assert broker.ask(request, version).assignment == b"work"


def test_a_sync_must_name_its_protocol_where_it_can(broker: BrokerContext) -> None:
    member = stable_group(broker)
    request = sync_request(member, 1, {})
    request.protocol_name = None

    assert broker.ask(request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_a_member_lives_in_every_version(broker: BrokerContext, version: int) -> None:
    member = stable_group(broker)

    assert broker.ask(heartbeat_request(member, 1), version).error_code == ErrorCode.NONE
    wrong = broker.ask(heartbeat_request(member, 9), version)
    assert wrong.error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_in_every_version(broker: BrokerContext, version: int) -> None:
    member = stable_group(broker)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    if version < 3:
        left = broker.ask(LeaveGroupRequest(group_id=GROUP, member_id=member), version)
        again = broker.ask(LeaveGroupRequest(group_id=GROUP, member_id=member), version)
        assert (left.error_code, again.error_code) == (ErrorCode.NONE, unknown)
    else:
        members = [MemberIdentity(member_id=member), MemberIdentity(member_id="eve")]
        left = broker.ask(LeaveGroupRequest(group_id=GROUP, members=members), version)
        assert left.error_code == ErrorCode.NONE
        assert [m.error_code for m in left.members] == [ErrorCode.NONE, unknown]


@pytest.mark.parametrize("timeout_ms", [5999, 1_800_001, 0, -1])
def test_a_session_timeout_out_of_bounds_is_refused(broker: BrokerContext, timeout_ms: int) -> None:
    find(broker)
    joined = broker.ask(join_request(member="m", session_timeout_ms=timeout_ms))

    assert joined.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert joined.member_id == "m"


@pytest.mark.parametrize("group", ["", "x" * 32_768])
def test_a_group_id_that_is_empty_or_too_long_is_refused_everywhere(
    broker: BrokerContext, group: str
) -> None:
    find(broker)
    invalid = ErrorCode.INVALID_GROUP_ID
    broker.create_topic("t")
    groups = broker.services.groups
    assert broker.ask(join_request("")).error_code == invalid
    assert broker.ask(heartbeat_request("m", 1, "")).error_code == invalid
    assert broker.ask(sync_request("m", 1, {}, "")).error_code == invalid
    assert commit_codes(broker.ask(commit_request(1, ""))) == [invalid]
    with pytest.raises(Exception, match="group id") as refusal:
        groups.shard_of(group)
    assert refusal.value.code is invalid  # type: ignore[attr-defined] # a BrokerError


# Offsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
def test_an_offset_is_committed_in_every_version(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    find(broker)

    assert commit_codes(broker.ask(commit_request(5), version)) == [ErrorCode.NONE]
    assert committed(broker) == 5


@pytest.mark.parametrize("version", range(1, 10))
def test_an_offset_is_told_in_every_version(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    find(broker)
    broker.ask(commit_request(5))
    if version < 8:
        old = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        answer = broker.ask(OffsetFetchRequest(group_id=GROUP, topics=old), version)
        topics = answer.topics
    else:
        new = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
        groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=new)]
        (answer,) = broker.ask(OffsetFetchRequest(groups=groups), version).groups
        topics = answer.topics

    first, second = topics[0].partitions
    assert (first.committed_offset, first.metadata, first.error_code) == (5, "note", 0)
    assert (second.committed_offset, second.error_code) == (-1, 0)


@pytest.mark.parametrize("version", [2, 7, 8, 9])
def test_all_offsets_of_a_group_are_told_when_no_topics_are_named(
    broker: BrokerContext, version: int
) -> None:
    for topic in ("t", "u"):
        broker.create_topic(topic)
    find(broker)
    broker.ask(commit_request(5))
    broker.ask(commit_request(6, topic="u"))
    asked = [OffsetFetchRequestGroup(group_id=GROUP, topics=None)]
    answer = broker.ask(
        OffsetFetchRequest(groups=asked)
        if version >= 8
        else OffsetFetchRequest(group_id=GROUP, topics=None),
        version,
    )
    topics = answer.topics if version < 8 else answer.groups[0].topics

    assert [(t.name, t.partitions[0].committed_offset) for t in topics] == [("t", 5), ("u", 6)]


def by_id(broker: BrokerContext, *names: str) -> dict[str, bytes]:
    ids = {name: bytes(topic.id) for name, topic in broker.cluster.image.topics.items()}
    return {name: ids.get(name, b"nobody-has-it-16") for name in names}


def test_offsets_are_committed_and_told_by_topic_id(broker: BrokerContext) -> None:
    for topic in ("t", "u", "secret"):
        broker.create_topic(topic)
    find(broker)
    broker.forbid(Operation.READ, ResourceType.TOPIC, "secret")
    ids = by_id(broker, "unknown", "t", "secret")
    request = commit_request(5)
    request.topics = [
        OffsetCommitRequestTopic(
            topic_id=topic_id,
            partitions=[
                OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
                for index in (0, 1)
            ],
        )
        for topic_id in ids.values()
    ]

    answer = broker.ask(request, 10)

    assert [(t.name, t.topic_id) for t in answer.topics] == [("", it) for it in ids.values()]
    assert commit_codes(answer) == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert committed(broker) == 5

    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "secret")
    named = [OffsetFetchRequestTopics(topic_id=it, partition_indexes=[0]) for it in ids.values()]
    asked = [
        OffsetFetchRequestGroup(group_id=GROUP, topics=named),
        OffsetFetchRequestGroup(group_id=GROUP, topics=None),
    ]
    first, second = broker.ask(OffsetFetchRequest(groups=asked), 10).groups
    assert [(t.topic_id, *told(t.partitions[0])) for t in first.topics] == [
        (ids["unknown"], -1, ErrorCode.UNKNOWN_TOPIC_ID),
        (ids["t"], 5, ErrorCode.NONE),
        (ids["secret"], -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert [(t.topic_id, *told(t.partitions[0])) for t in second.topics] == [(ids["t"], 5, 0)]


def told(partition: Any) -> tuple[int, int]:
    return partition.committed_offset, partition.error_code


def test_a_topic_made_anew_has_no_offsets_under_its_old_id(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    old = by_id(broker, "t")["t"]
    broker.run(broker.cluster.delete_topics(["t"]))
    broker.create_topic("t")
    request = commit_request(5)
    request.topics[0].topic_id = old
    assert commit_codes(broker.ask(request, 10)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    named = [OffsetFetchRequestTopics(topic_id=old, partition_indexes=[0])]
    asked = [OffsetFetchRequestGroup(group_id=GROUP, topics=named)]
    (group,) = broker.ask(OffsetFetchRequest(groups=asked), 10).groups
    assert told(group.topics[0].partitions[0]) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


def test_who_asks_the_wrong_broker_by_id_is_told_the_same_ids(broker: BrokerContext) -> None:
    topics = [OffsetFetchRequestTopics(topic_id=b"nobody-has-it-16", partition_indexes=[0])]
    asked = [OffsetFetchRequestGroup(group_id=GROUP, topics=topics)]
    (group,) = broker.ask(OffsetFetchRequest(groups=asked), 10).groups
    assert group.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (topic,) = group.topics
    assert topic.topic_id == b"nobody-has-it-16"
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_groups_are_answered_one_by_one(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    broker.ask(commit_request(5))
    broker.forbid(Operation.DESCRIBE, ResourceType.GROUP, "secret")
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = [
        OffsetFetchRequestGroup(group_id=group, topics=topics)
        for group in (GROUP, "secret", "unknown", "")
    ]
    answers = broker.ask(OffsetFetchRequest(groups=asked)).groups

    assert [a.error_code for a in answers] == [
        ErrorCode.NONE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.NONE,
        ErrorCode.INVALID_GROUP_ID,
    ]
    assert [len(a.topics) for a in answers] == [1, 0, 1, 0]


def test_the_oldest_clients_find_errors_at_the_partitions(broker: BrokerContext) -> None:
    find(broker)
    broker.forbid(Operation.DESCRIBE, ResourceType.GROUP)
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=topics)

    (partition,) = broker.ask(request, 1).topics[0].partitions
    assert partition.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    answer = broker.ask(request, 2)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])


def test_who_asks_the_wrong_broker_is_told_to_ask_again_for_each_partition(
    broker: BrokerContext,
) -> None:
    """librdkafka asks the coordinator that it then finds only for partitions that are said not to be stable."""
    old = OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 3])]
    )
    new = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=GROUP,
                topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0, 3])],
            ),
            OffsetFetchRequestGroup(group_id="all", topics=None),
        ]
    )
    gone, unstable = ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT

    for version in (2, 6):
        answer = broker.ask(old, version)
        assert (answer.error_code, answer.topics) == (gone, [])
    seventh = broker.ask(old, 7)
    assert seventh.error_code == gone
    named, everything = broker.ask(new, 8).groups
    assert (named.error_code, everything.error_code, everything.topics) == (gone, gone, [])
    for topics in (seventh.topics, named.topics):
        (topic,) = topics
        told = [(p.partition_index, p.committed_offset, p.error_code) for p in topic.partitions]
        assert told == [(0, -1, unstable), (3, -1, unstable)]


def test_a_topic_that_is_not_there_or_not_allowed_is_refused_in_its_place(
    broker: BrokerContext,
) -> None:
    for topic in ("t", "secret"):
        broker.create_topic(topic)
    broker.forbid(Operation.READ, ResourceType.TOPIC, "secret")
    find(broker)
    request = commit_request(5, topic="unknown")
    for topic in ("t", "secret"):
        request.topics += commit_request(5, topic=topic).topics

    answer = broker.ask(request)

    assert [t.name for t in answer.topics] == ["unknown", "t", "secret"]
    assert commit_codes(answer) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]


@pytest.mark.parametrize("partition", [-1, 2])
def test_a_partition_that_is_not_there_is_refused_in_its_place(
    broker: BrokerContext, partition: int
) -> None:
    broker.create_topic("t", 2)
    find(broker)
    request = commit_request(5, partition=partition)
    request.topics[0].partitions += commit_request(6).topics[0].partitions

    codes = commit_codes(broker.ask(request))
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert committed(broker) == 6


def test_a_topic_that_may_not_be_seen_is_hidden_in_what_is_told(broker: BrokerContext) -> None:
    for topic in ("t", "secret"):
        broker.create_topic(topic)
    find(broker)
    broker.ask(commit_request(5, topic="secret"))
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "secret")
    named = [OffsetFetchRequestTopics(name="secret", partition_indexes=[0])]
    asked = [
        OffsetFetchRequestGroup(group_id=GROUP, topics=named),
        OffsetFetchRequestGroup(group_id=GROUP, topics=None),
    ]
    first, second = broker.ask(OffsetFetchRequest(groups=asked)).groups

    (partition,) = first.topics[0].partitions
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert partition.committed_offset == -1
    assert second.topics == []


def test_rejected_commit_names_unknown_topics_too(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    request = commit_request(5, member_id="stranger", generation_id_or_member_epoch=3)
    request.topics += commit_request(5, topic="unknown").topics

    answer = broker.ask(request, 8)

    assert [topic.name for topic in answer.topics] == ["t", "unknown"]
    assert commit_codes(answer) == [ErrorCode.ILLEGAL_GENERATION] * 2


def test_text_that_is_too_long_is_refused_for_its_partition(broker: BrokerContext) -> None:
    broker.create_topic("t", partitions=2)
    find(broker)
    request = commit_request(5)
    long = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=6, committed_metadata="x" * 4097
    )
    request.topics[0].partitions.append(long)

    codes = commit_codes(broker.ask(request))
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_offsets_are_deleted_where_that_is_possible(broker: BrokerContext) -> None:
    for topic in ("t", "u"):
        broker.create_topic(topic)
    find(broker)
    broker.ask(commit_request(6, topic="u"))
    broker.forbid(Operation.READ, ResourceType.TOPIC, "secret")
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    names = ("u", "unknown", "secret")
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[OffsetDeleteRequestTopic(name=n, partitions=partitions) for n in names],
    )
    answer = broker.ask(request)

    assert {t.name: t.partitions[0].error_code for t in answer.topics} == {
        "u": ErrorCode.NONE,
        "unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert committed(broker, topic="u") == -1
    request.group_id = "unknown"
    assert broker.ask(request).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Consumer groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_consumer_group_lives_and_is_described_in_every_version(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("t", partitions=2)
    find(broker)
    first = beat(broker, "ann", 0)
    assert (first.error_code, first.member_epoch) == (ErrorCode.NONE, 1)
    (topic,) = first.assignment.topic_partitions
    assert topic.partitions == [0, 1]

    request = ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True)
    (group,) = broker.ask(request, version).groups

    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 1, "uniform")
    (member,) = group.members
    assert member.member_id == "ann"
    assert member.client_host == "/127.0.0.1"
    assert [t.topic_name for t in member.assignment.topic_partitions] == ["t"]
    assert member.member_type == (1 if version else -1)
    assert group.authorized_operations != -0x80000000


def test_a_consumer_group_has_the_times_that_were_set_for_it(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    beat(broker, "ann", 0)
    ops = [
        ConfigOp("consumer.heartbeat.interval.ms", Op.SET, "7000"),
        ConfigOp("consumer.session.timeout.ms", Op.SET, "59000"),
    ]
    broker.run(broker.cluster.alter_configs(Resource.GROUP, GROUP, ops))
    (group,) = broker.services.groups.groups()
    assert isinstance(group, ConsumerGroup)
    group.restless_until_ms = 0
    assert beat(broker, "ann", 1).heartbeat_interval_ms == 7000
    assert group.context.times_of(GROUP) == (59_000, 7000)
    assert group.context.times_of("another") == (45_000, 5000)

    broker.run(broker.cluster.replace_configs(Resource.GROUP, GROUP, []))
    assert beat(broker, "ann", 1).heartbeat_interval_ms == 5000


def test_bad_heartbeats_of_consumer_groups_are_told_what_is_wrong(broker: BrokerContext) -> None:
    find(broker)
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "secret")

    def code(**more: Any) -> ErrorCode:
        answer = beat(broker, "ann", 0, **more)
        assert answer.error_message
        return ErrorCode(answer.error_code)

    assert code(subscribed_topic_names=["secret"]) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code(subscribed_topic_regex="(") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert code(server_assignor="best") is ErrorCode.UNSUPPORTED_ASSIGNOR
    empty = ConsumerGroupHeartbeatRequest(group_id=" ", member_id="m", member_epoch=0)
    assert broker.ask(empty).error_code == ErrorCode.INVALID_REQUEST
    assert list(broker.services.groups.groups()) == []


def test_a_pattern_matches_only_what_its_member_may_see(broker: BrokerContext) -> None:
    for topic in ("a-1", "a-2"):
        broker.create_topic(topic)
    find(broker)
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "a-2")
    answer = beat(broker, "ann", 0, subscribed_topic_names=None, subscribed_topic_regex="a-.*")

    (topic,) = answer.assignment.topic_partitions
    assert topic.topic_id == broker.cluster.image.topics["a-1"].id


def test_a_consumer_group_on_a_hidden_topic_is_not_described(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    beat(broker, "ann", 0)
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "t")
    (group,) = broker.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups

    assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert group.members == []


# Listing, describing, deleting -------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_by_state_and_type(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    member = stable_group(broker, "classic")
    broker.ask(commit_request(1, "simple"))
    beat(broker, "ann", 0)

    def listed(**filters: list[str]) -> list[str]:
        answer = broker.ask(ListGroupsRequest(**filters), version)
        return sorted(group.group_id for group in answer.groups)

    assert member
    assert listed() == ["classic", GROUP, "simple"]
    if version >= 4:
        assert listed(states_filter=["STABLE"]) == ["classic", GROUP]
        assert listed(states_filter=["empty"]) == ["simple"]
    if version >= 5:
        assert listed(types_filter=["consumer"]) == [GROUP]
        assert listed(types_filter=["Classic"], states_filter=["Stable"]) == ["classic"]


def test_only_groups_that_may_be_seen_are_listed(broker: BrokerContext) -> None:
    broker.create_topic("t")
    find(broker)
    for group in ("mine", "theirs"):
        broker.ask(commit_request(1, group))
    broker.allow_only((Operation.DESCRIBE, ResourceType.GROUP, "mine"))

    assert [g.group_id for g in broker.ask(ListGroupsRequest()).groups] == ["mine"]


@pytest.mark.parametrize("version", range(7))
def test_a_classic_group_is_described_in_every_version(broker: BrokerContext, version: int) -> None:
    member = stable_group(broker)
    request = DescribeGroupsRequest(groups=[GROUP, "unknown"])
    known, unknown = broker.ask(request, version).groups

    assert (known.group_state, known.protocol_type, known.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert [(m.member_id, m.member_assignment) for m in known.members] == [(member, b"work")]
    assert unknown.group_state == "Dead"
    missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert unknown.error_code == missing


@pytest.mark.parametrize("version", range(3))
def test_groups_without_members_are_deleted(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    stable_group(broker)
    broker.ask(commit_request(1, "simple"))
    broker.forbid(Operation.DELETE, ResourceType.GROUP, "secret")
    names = ["simple", GROUP, "unknown", "secret", ""]
    answer = broker.ask(DeleteGroupsRequest(groups_names=names), version)

    assert {r.group_id: r.error_code for r in answer.results} == {
        "simple": ErrorCode.NONE,
        GROUP: ErrorCode.NON_EMPTY_GROUP,
        "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
        "secret": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "": ErrorCode.INVALID_GROUP_ID,
    }
    assert committed(broker, "simple") == -1
