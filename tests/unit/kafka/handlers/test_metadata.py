import inspect
from dataclasses import replace
from typing import Any

import pytest

from penstock.kafka.handlers import metadata
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tests.support.context import ADDRESS, BROKER_ID, BrokerContext

NOT_ASKED = -(1 << 31)
UNKNOWN_ID = bytes(15) + b"\xff"


def ask(
    broker: BrokerContext, *names: str, version: int = 12, create: bool = False, **fields: Any
) -> list[MetadataResponseTopic]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)
    answered = broker.ask(request, version)
    assert isinstance(answered, MetadataResponse)
    return answered.topics


def ask_by_id(broker: BrokerContext, topic_id: bytes, version: int = 12) -> MetadataResponseTopic:
    topic = MetadataRequestTopic(name=None, topic_id=topic_id)
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
    (answered,) = broker.ask(request, version).topics
    assert isinstance(answered, MetadataResponseTopic)
    return answered


# What is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "told"), [((), [BROKER_ID]), (("t",), [BROKER_ID, 2])])
def test_who_looks_for_leaders_is_told_of_brokers_that_have_just_died_too(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], told: list[int]
) -> None:
    (running,) = broker.cluster.endpoints("PLAINTEXT")
    died = running[0]._replace(id=2), running[1]
    monkeypatch.setattr(broker.cluster, "endpoints_with_grace", lambda _: [running, died])
    topics = [MetadataRequestTopic(name=name) for name in names]
    answered = broker.ask(MetadataRequest(topics=topics), 12)
    assert [one.node_id for one in answered.brokers] == told


@pytest.mark.parametrize("version", range(14))
def test_every_version_tells_of_brokers_topics_and_leaders(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("orders", partitions=2)
    answered = broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), version)
    (one,) = answered.brokers
    assert (one.node_id, one.host, one.port) == (BROKER_ID, ADDRESS.host, ADDRESS.port)
    (topic,) = answered.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
    assert topic.topic_id == (
        broker.cluster.image.topics["orders"].id if version >= 10 else bytes(16)
    )
    leaders = [
        (p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions
    ]
    assert leaders == [
        (0, BROKER_ID, [BROKER_ID], [BROKER_ID]),
        (1, BROKER_ID, [BROKER_ID], [BROKER_ID]),
    ]
    assert all(p.leader_epoch == 0 for p in topic.partitions if version >= 7)
    if version >= 1:
        assert answered.controller_id == BROKER_ID
    if version >= 2:
        assert answered.cluster_id == broker.cluster.cluster_id


def test_null_means_all_topics_and_an_empty_list_means_none_except_in_version_0(
    broker: BrokerContext,
) -> None:
    broker.create_topic("a")
    broker.create_topic("b")
    everything = MetadataRequest(topics=None)
    assert [t.name for t in broker.ask(everything, 9).topics] == ["a", "b"]
    nothing = MetadataRequest(topics=[])
    assert broker.ask(nothing, 1).topics == []
    assert [t.name for t in broker.ask(nothing, 0).topics] == ["a", "b"]


def test_a_listing_leaves_out_what_may_not_be_seen(broker: BrokerContext) -> None:
    broker.create_topic("open")
    broker.create_topic("secret")
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "secret")
    assert [t.name for t in broker.ask(MetadataRequest(topics=None), 9).topics] == ["open"]
    (topic,) = ask(broker, "secret")
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_internal_topics_are_marked(broker: BrokerContext) -> None:
    broker.create_topic("__consumer_offsets", config={"cleanup.policy": "compact"})
    (topic,) = ask(broker, "__consumer_offsets")
    assert topic.is_internal


def test_a_partition_that_failed_has_an_offline_replica(broker: BrokerContext) -> None:
    broker.create_topic("orders", partitions=2)
    broker.partition("orders", 1).fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
    (topic,) = ask(broker, "orders")
    assert [p.offline_replicas for p in topic.partitions] == [[], [BROKER_ID]]


def test_rights_are_told_when_asked_for(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.DELETE, ResourceType.TOPIC)
    (silent,) = ask(broker, "orders", version=10)
    assert silent.topic_authorized_operations == NOT_ASKED
    (told,) = ask(broker, "orders", version=10, include_topic_authorized_operations=True)
    assert told.topic_authorized_operations & (1 << Operation.READ)
    assert not told.topic_authorized_operations & (1 << Operation.DELETE)


def test_what_is_known_is_answered_without_waiting(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    asked = [MetadataRequestTopic(name="orders"), MetadataRequestTopic(name="absent")]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    answer = broker.call(lambda: metadata.handle(request, broker.context(3, 9)))
    assert not inspect.isawaitable(answer)


# By id -----------------------------------------------------------------------------------------


def test_a_topic_can_be_asked_for_by_its_id(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topic_id = broker.cluster.image.topics["orders"].id
    found = ask_by_id(broker, topic_id)
    assert (found.error_code, found.name, found.topic_id) == (0, "orders", topic_id)
    unknown = ask_by_id(broker, UNKNOWN_ID)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert unknown.topic_id == UNKNOWN_ID
    assert ask_by_id(broker, bytes(16)).error_code == ErrorCode.INVALID_REQUEST
    assert ask_by_id(broker, topic_id, version=11).error_code == ErrorCode.INVALID_REQUEST


def test_an_id_that_may_not_be_seen_is_unknown(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "orders")
    found = ask_by_id(broker, broker.cluster.image.topics["orders"].id)
    assert (found.error_code, found.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


# Auto-creation ---------------------------------------------------------------------------------


def test_a_missing_topic_is_created_when_client_and_broker_agree(broker: BrokerContext) -> None:
    (topic,) = ask(broker, "new", create=True)
    assert topic.error_code == ErrorCode.NONE
    assert len(topic.partitions) == broker.cluster.config.num_partitions
    assert "new" in broker.replicas.topics


@pytest.mark.parametrize(
    ("version", "create", "enabled", "created"),
    [
        (12, True, True, True),
        (12, False, True, False),
        (12, True, False, False),
        (3, False, True, True),  # it had no say before version 4
        (3, False, False, False),
    ],
)
def test_creation_needs_the_wish_of_the_client_and_the_leave_of_the_broker(
    broker: BrokerContext,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    create: bool,
    enabled: bool,
    created: bool,
) -> None:
    config = replace(broker.cluster.config, auto_create_topics_enable=enabled)
    monkeypatch.setattr(broker.cluster, "config", config)
    (topic,) = ask(broker, "new", version=version, create=create or version < 4)
    expected = ErrorCode.NONE if created else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.error_code == expected
    assert ("new" in broker.cluster.image.topics) == created


def test_creation_needs_the_right_to_create_the_topic_or_any(broker: BrokerContext) -> None:
    broker.forbid(Operation.CREATE, ResourceType.CLUSTER)
    assert ask(broker, "a", create=True)[0].error_code == ErrorCode.NONE
    broker.forbid(Operation.CREATE, ResourceType.TOPIC)
    (refused,) = ask(broker, "b", create=True)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (unseen,) = ask(broker, "b", create=False)
    assert unseen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "b" not in broker.cluster.image.topics


def test_who_may_not_see_a_topic_cannot_create_it(broker: BrokerContext) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC)
    (topic,) = ask(broker, "new", create=True)
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert broker.cluster.image.topics == {}


@pytest.mark.parametrize("name", [".", "..", "a b", "x" * 250, "käse"])
@pytest.mark.parametrize("create", [True, False])
def test_a_name_that_no_topic_can_have_is_refused_as_such(
    broker: BrokerContext, name: str, create: bool
) -> None:
    (topic,) = ask(broker, name, create=create)
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def test_some_are_created_and_some_refused_and_each_is_answered_once_in_its_place(
    broker: BrokerContext,
) -> None:
    broker.create_topic("old")
    topics = ask(broker, "a b", "old", "new", "new", create=True)
    assert [(t.name, t.error_code) for t in topics] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("old", 0),
        ("new", 0),
    ]


def test_a_creation_that_fails_is_told(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_: str) -> None:
        raise BrokerError("the store is away", ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(broker.cluster, "auto_create_topic", failing)
    (topic,) = ask(broker, "new", create=True)
    assert topic.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_refusal_of_all_names_every_topic() -> None:
    asked = [MetadataRequestTopic(name="a"), MetadataRequestTopic(name=None, topic_id=UNKNOWN_ID)]
    refused = metadata.refuse(MetadataRequest(topics=asked), BrokerError("a bug"))
    assert [t.error_code for t in refused.topics] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert metadata.refuse(MetadataRequest(topics=None), BrokerError("a bug")).topics == []
