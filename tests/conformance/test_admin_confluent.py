"""What operators do with librdkafka's AdminClient, and what it tells them when it cannot be done."""

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import (
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from penstock.testing import Broker
from tests.support.clients import CONFLUENT, PATIENCE_S, Sent

rd: Any = confluent_kafka.admin  # its own types are incomplete
Admin: TypeAlias = Any

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Admin:
    return rd.AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def done(futures: dict[Any, Future[Any]]) -> Any:
    """The one result."""
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def refusal(ask: Callable[[], Any]) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        ask()
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def create(admin: Admin, topic: Any, **options: Any) -> Any:
    return done(admin.create_topics([topic], **options))


def configs(admin: Admin, kind: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = done(admin.describe_configs([rd.ConfigResource(kind, name)]))
    return found


def change(admin: Admin, name: str, *entries: Any, kind: Any = rd.ResourceType.TOPIC) -> Any:
    resource = rd.ConfigResource(kind, name, incremental_configs=list(entries))
    return done(admin.incremental_alter_configs([resource]))


def entry(name: str, value: str, operation: Any) -> Any:
    return rd.ConfigEntry(name, value, incremental_operation=operation)


# topics


def test_a_topic_is_created_described_and_deleted(admin: Admin) -> None:
    name = fresh()
    create(admin, rd.NewTopic(name, 3, 1, config={"retention.ms": "60000"}))

    described = done(admin.describe_topics(TopicCollection([name])))
    assert (described.name, len(described.partitions), described.is_internal) == (name, 3, False)
    assert name in admin.list_topics(timeout=PATIENCE_S).topics
    assert configs(admin, rd.ResourceType.TOPIC, name)["retention.ms"].value == "60000"

    done(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics


def test_a_topic_without_counts_has_the_brokers_defaults(admin: Admin) -> None:
    name = fresh()
    create(admin, rd.NewTopic(name))
    assert len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == 1


def test_a_topic_can_be_placed_by_hand(admin: Admin) -> None:
    name = fresh()
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    create(admin, rd.NewTopic(name, 2, replica_assignment=[[broker_id], [broker_id]]))
    assert len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == 2


def test_validate_only_creates_nothing(admin: Admin) -> None:
    name = fresh()
    create(admin, rd.NewTopic(name, 1, 1), validate_only=True)
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize(
    ("topic", "code", "said"),
    [
        (rd.NewTopic("a b", 1, 1), KafkaError.TOPIC_EXCEPTION, "a b"),
        (rd.NewTopic("ok", 0, 1), KafkaError.INVALID_PARTITIONS, "0 partitions"),
        (rd.NewTopic("ok", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR, "1 can be used"),
        (
            rd.NewTopic("ok", 1, replica_assignment=[[99]]),
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            "broker 99",
        ),
        (
            rd.NewTopic("ok", 1, 1, config={"retention.ms": "soon"}),
            KafkaError.INVALID_CONFIG,
            "retention.ms",
        ),
        (rd.NewTopic("ok", 1, 1, config={"retension.ms": "1"}), KafkaError.INVALID_CONFIG, "mean"),
        (
            rd.NewTopic("ok", 20_000, 1),
            KafkaError.POLICY_VIOLATION,
            "penstock.partitions.per.request.max",
        ),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused_with_a_code_and_a_reason(
    admin: Admin, topic: Any, code: int, said: str
) -> None:
    error = refusal(lambda: create(admin, topic))
    assert error.code() == code
    assert said in error.str()


def test_a_topic_that_exists_is_not_created_again(admin: Admin, topic: str) -> None:
    error = refusal(lambda: create(admin, rd.NewTopic(topic, 1, 1)))
    assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert topic in error.str()


def test_a_topic_that_does_not_exist_is_neither_described_nor_deleted(admin: Admin) -> None:
    name = fresh()
    described = refusal(lambda: done(admin.describe_topics(TopicCollection([name]))))
    deleted = refusal(lambda: done(admin.delete_topics([name])))
    assert described.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert deleted.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# partitions and records


def test_a_topic_grows_and_never_shrinks(admin: Admin, topic: str) -> None:
    done(admin.create_partitions([rd.NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 5
    error = refusal(lambda: done(admin.create_partitions([rd.NewPartitions(topic, 3)])))
    assert error.code() == KafkaError.INVALID_PARTITIONS
    assert "5 partitions" in error.str()


def test_records_are_deleted_up_to_an_offset(admin: Admin, broker: Broker, topic: str) -> None:
    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"x")] * 10, "none")
    deleted = done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4

    earliest = done(admin.list_offsets({TopicPartition(topic, 0): rd.OffsetSpec.earliest()}))
    assert earliest.offset == 4
    everything = done(admin.delete_records([TopicPartition(topic, 0, confluent_kafka.OFFSET_END)]))
    assert everything.low_watermark == 10


def test_records_that_do_not_exist_cannot_be_deleted(admin: Admin, topic: str) -> None:
    error = refusal(lambda: done(admin.delete_records([TopicPartition(topic, 0, 5)])))
    assert error.code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed_for_both_ends_and_for_a_time(
    admin: Admin, broker: Broker, topic: str
) -> None:
    messages = [Sent(None, b"%d" % n, timestamp_ms=1000 + n) for n in range(10)]
    CONFLUENT.produce(broker.bootstrap, topic, messages, "none")
    for spec, offset in (
        (rd.OffsetSpec.earliest(), 0),
        (rd.OffsetSpec.latest(), 10),
        (rd.OffsetSpec.max_timestamp(), 9),
        (rd.OffsetSpec.for_timestamp(1005), 5),
    ):
        assert done(admin.list_offsets({TopicPartition(topic, 0): spec})).offset == offset


# settings


def test_single_settings_are_set_extended_cut_and_deleted(admin: Admin, topic: str) -> None:
    change(
        admin,
        topic,
        entry("retention.ms", "1000", rd.AlterConfigOpType.SET),
        entry("cleanup.policy", "compact", rd.AlterConfigOpType.APPEND),
    )
    found = configs(admin, rd.ResourceType.TOPIC, topic)
    assert found["retention.ms"].value == "1000"
    assert found["retention.ms"].source == rd.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert set(found["cleanup.policy"].value.split(",")) == {"compact", "delete"}

    change(admin, topic, entry("cleanup.policy", "compact", rd.AlterConfigOpType.SUBTRACT))
    change(
        admin,
        topic,
        rd.ConfigEntry("retention.ms", None, incremental_operation=rd.AlterConfigOpType.DELETE),
    )
    found = configs(admin, rd.ResourceType.TOPIC, topic)
    assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("604800000", "delete")
    assert found["retention.ms"].is_default

    change(admin, topic, entry("cleanup.policy", "delete", rd.AlterConfigOpType.SUBTRACT))
    assert configs(admin, rd.ResourceType.TOPIC, topic)["cleanup.policy"].value == ""


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_settings_are_replaced_as_a_whole(admin: Admin, topic: str) -> None:
    change(admin, topic, entry("retention.ms", "1000", rd.AlterConfigOpType.SET))
    resource = rd.ConfigResource(
        rd.ResourceType.TOPIC, topic, set_config={"segment.bytes": "100000"}
    )
    done(admin.alter_configs([resource]))
    found = configs(admin, rd.ResourceType.TOPIC, topic)
    assert (found["segment.bytes"].value, found["retention.ms"].value) == ("100000", "604800000")


def test_settings_have_synonyms(admin: Admin, topic: str) -> None:
    found = configs(admin, rd.ResourceType.TOPIC, topic)["max.message.bytes"]
    assert "message.max.bytes" in found.synonyms


def test_a_broker_shows_and_changes_its_settings(admin: Admin) -> None:
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    before = configs(admin, rd.ResourceType.BROKER, str(broker_id))
    assert before["log.dirs"].is_read_only
    setting = "log.cleaner.backoff.ms"
    change(
        admin,
        str(broker_id),
        entry(setting, "20000", rd.AlterConfigOpType.SET),
        kind=rd.ResourceType.BROKER,
    )
    after = configs(admin, rd.ResourceType.BROKER, str(broker_id))[setting]
    assert (after.value, after.source) == ("20000", rd.ConfigSource.DYNAMIC_BROKER_CONFIG.value)


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("retention.ms", "soon", KafkaError.INVALID_CONFIG),
        ("no.such.setting", "1", KafkaError.INVALID_CONFIG),
        ("remote.storage.enable", "true", KafkaError.INVALID_CONFIG),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    admin: Admin, topic: str, setting: str, value: str, code: int
) -> None:
    error = refusal(lambda: change(admin, topic, entry(setting, value, rd.AlterConfigOpType.SET)))
    assert error.code() == code
    assert setting in error.str()


def test_a_broker_takes_settings_of_kafka_that_have_no_effect(admin: Admin) -> None:
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    kind, name = rd.ResourceType.BROKER, "sasl.kerberos.min.time.before.relogin"
    given = [
        entry(name, "58000", rd.AlterConfigOpType.SET),
        entry("cleanup.policy", "delete", rd.AlterConfigOpType.SET),
    ]
    change(admin, str(broker_id), *given, kind=kind)
    found = configs(admin, kind, str(broker_id))
    assert (found[name].value, found[name].is_default) == ("58000", False)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].is_sensitive) == (None, True)
    for it in given:
        delete = rd.ConfigEntry(it.name, None, incremental_operation=rd.AlterConfigOpType.DELETE)
        change(admin, str(broker_id), delete, kind=kind)
    found = configs(admin, kind, str(broker_id))
    assert (found[name].value, "cleanup.policy" in found) == ("60000", False)


def test_a_setting_that_needs_a_restart_is_not_changed(admin: Admin) -> None:
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    read_only = entry("log.dirs", "elsewhere", rd.AlterConfigOpType.SET)
    error = refusal(lambda: change(admin, str(broker_id), read_only, kind=rd.ResourceType.BROKER))
    assert error.code() == KafkaError.INVALID_REQUEST
    assert "restart" in error.str()


# the cluster


def test_the_cluster_is_described(admin: Admin, broker: Broker) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    (node,) = described.nodes
    assert f"{node.host}:{node.port}" == broker.bootstrap
    assert described.controller.id == node.id
    assert described.cluster_id
    assert described.authorized_operations


def test_leaders_that_lead_need_no_election(admin: Admin, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    result = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(PATIENCE_S)
    assert result[partition].code() == KafkaError.ELECTION_NOT_NEEDED
    everywhere = admin.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_S)
    assert everywhere == {}


def test_rules_are_refused_without_an_authorizer(admin: Admin) -> None:
    rule = rd.AclBinding(
        rd.ResourceType.TOPIC,
        "orders",
        rd.ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        rd.AclOperation.READ,
        rd.AclPermissionType.ALLOW,
    )
    error = refusal(lambda: done(admin.create_acls([rule])))
    assert error.code() == KafkaError.SECURITY_DISABLED
    assert "authorizer" in error.str()


def test_unknown_users_have_no_credentials(admin: Admin) -> None:
    error = refusal(lambda: done(admin.describe_user_scram_credentials(["nobody"])))
    assert error.code() == KafkaError.RESOURCE_NOT_FOUND


# producers


def test_an_idempotent_producer_gets_an_id(broker: Broker, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
    )
    errors: list[KafkaError | None] = []
    for _ in range(10):
        producer.produce(
            topic, b"x", partition=0, on_delivery=lambda error, _: errors.append(error)
        )
    producer.flush(PATIENCE_S)
    assert errors == [None] * 10


def test_a_group_has_settings_of_its_own(admin: Admin) -> None:
    kind, group = rd.ResourceType.GROUP, fresh()
    session = "consumer.session.timeout.ms"
    change(admin, group, entry(session, "50000", rd.AlterConfigOpType.SET), kind=kind)
    found = configs(admin, kind, group)
    assert (found[session].value, found[session].source) == (
        "50000",
        rd.ConfigSource.GROUP_CONFIG.value,
    )
    assert found["consumer.heartbeat.interval.ms"].is_default
    too_short = entry(session, "1", rd.AlterConfigOpType.SET)
    error = refusal(lambda: change(admin, group, too_short, kind=kind))
    assert error.code() == KafkaError.INVALID_CONFIG
    deletion = rd.ConfigEntry(session, None, incremental_operation=rd.AlterConfigOpType.DELETE)
    change(admin, group, deletion, kind=kind)
    assert configs(admin, kind, group)[session].value == "45000"
