"""The controller's decisions: what is refused and why, and that what is decided is sound."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.rules.controller import (
    TopicSpec,
    allocate_producer_ids,
    automatic_topic,
    create_partitions,
    create_topics,
    delete_topics,
    remove_orphans,
)
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.store import NO_REVISION, Compare, DeletePrefix, Put
from penstock.metadata.values import (
    PartitionImage,
    chunk_key,
    encode_chunk,
    topic_key,
)
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicId
from tests.unit.metadata.worlds import World

CODES = ErrorCode


def refusal(world: World, spec: TopicSpec) -> BrokerError:
    (outcome,) = create_topics(world.image, [spec], world.rules, world.new_id)
    assert isinstance(outcome, BrokerError)
    return outcome


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a:b", "a*", "\x00"]
)
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    assert refusal(World(), TopicSpec(name)).code is CODES.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "a" * 249, "...", "A-b_c.9", "-", "_"])
def test_a_name_that_kafka_accepts_is_accepted(name: str) -> None:
    assert [topic.name for topic in World().create(TopicSpec(name))] == [name]


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        (TopicSpec("there"), CODES.TOPIC_ALREADY_EXISTS, "topic 'there' already exists"),
        (TopicSpec("x_y"), CODES.INVALID_TOPIC_EXCEPTION, "collides with topic 'x.y'"),
        (TopicSpec("t", 0), CODES.INVALID_PARTITIONS, "0 partitions"),
        (TopicSpec("t", -2), CODES.INVALID_PARTITIONS, "-2 partitions"),
        (TopicSpec("t", 1, 0), CODES.INVALID_REPLICATION_FACTOR, "replication factor 0"),
        (TopicSpec("t", 1, -2), CODES.INVALID_REPLICATION_FACTOR, "replication factor -2"),
        (
            TopicSpec("t", 1, 3),
            CODES.INVALID_REPLICATION_FACTOR,
            "replication factor 3 asks for as many brokers; 1 can be used",
        ),
        (TopicSpec("t", 1, 1, {0: [1]}), CODES.INVALID_REQUEST, "must be -1"),
        (TopicSpec("t", assignments={1: [1]}), CODES.INVALID_REPLICA_ASSIGNMENT, "0, 1, 2"),
        (TopicSpec("t", assignments={0: []}), CODES.INVALID_REPLICA_ASSIGNMENT, "no replicas"),
        (TopicSpec("t", assignments={0: [1, 1]}), CODES.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (TopicSpec("t", assignments={0: [7]}), CODES.INVALID_REPLICA_ASSIGNMENT, "not registered"),
        (
            TopicSpec("t", assignments={0: [1], 1: [1, 2]}),
            CODES.INVALID_REPLICA_ASSIGNMENT,
            "partition 1 has 2 replicas, others have 1",
        ),
        (TopicSpec("t", config={"x": "1"}), CODES.INVALID_CONFIG, "unknown topic setting"),
        (TopicSpec("t", config={"retention.ms": None}), CODES.INVALID_CONFIG, "has no value"),
        (TopicSpec("t", config={"retention.ms": "-5"}), CODES.INVALID_CONFIG, "the least is -1"),
        (
            TopicSpec("t", config={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}),
            CODES.INVALID_CONFIG,
            "is larger than",
        ),
        (TopicSpec("t", 11), CODES.POLICY_VIOLATION, "penstock.partitions.per.request.max"),
        (TopicSpec("t", 6), CODES.POLICY_VIOLATION, "penstock.partitions.per.broker.max"),
    ],
)
def test_what_cannot_be_created_is_refused_with_code_and_reason(
    spec: TopicSpec, code: ErrorCode, says: str
) -> None:
    limits = {
        "penstock.partitions.per.request.max": "10",
        "penstock.partitions.per.broker.max": "7",
    }
    world = World(static=limits)
    world.create(TopicSpec("there"), TopicSpec("x.y"))
    error = refusal(world, spec)
    assert error.code is code
    assert says in str(error)


def test_minus_one_asks_for_the_brokers_defaults() -> None:
    brokers: dict[int, str | None] = dict.fromkeys(range(1, 6))
    (topic,) = World({1: None}, static={"num.partitions": "7"}).create(TopicSpec("t"))
    assert (len(topic.partitions), topic.replication_factor) == (7, 1)
    (topic,) = World(brokers).create(TopicSpec("t"))
    assert (len(topic.partitions), topic.replication_factor) == (1, 3)
    (topic,) = World(brokers, static={"default.replication.factor": "4"}).create(TopicSpec("t"))
    assert topic.replication_factor == 4


def test_one_request_is_judged_as_a_whole() -> None:
    world = World(static={"penstock.partitions.per.request.max": "4"})
    specs = [
        TopicSpec("twice"),
        TopicSpec("a.b", 2),
        TopicSpec("a_b"),
        TopicSpec("twice"),
        TopicSpec("large", 3),
        TopicSpec("small", 2),
    ]
    outcomes = create_topics(world.image, specs, world.rules, world.new_id)
    assert [it.code if isinstance(it, BrokerError) else it.result.name for it in outcomes] == [
        CODES.INVALID_REQUEST,
        "a.b",
        CODES.INVALID_TOPIC_EXCEPTION,
        CODES.INVALID_REQUEST,
        CODES.POLICY_VIOLATION,
        "small",
    ]


def test_a_creation_rests_on_the_absence_of_every_key_it_writes_and_becomes_visible_last() -> None:
    world = World()
    spec = TopicSpec("t", 130, config={"retention.ms": "1"})
    (outcome,) = create_topics(world.image, [spec], world.rules, world.new_id)
    assert isinstance(outcome, Decision)
    keys = [write.key for write in outcome.writes if isinstance(write, Put)]
    assert keys == [
        *(chunk_key(TopicId(bytes(15) + b"\1"), n) for n in range(3)),
        "cfg/topic/t",
        "t/t",
    ]
    assert list(outcome.compares) == [Compare(key, mod_revision=NO_REVISION) for key in keys]


def test_replicas_by_hand_are_taken_as_they_are() -> None:
    world = World({1: None, 2: None, 3: None}, down=[2])
    (topic,) = world.create(TopicSpec("t", assignments={1: [3, 1], 0: [2, 3]}))
    assert topic.partitions == (
        PartitionImage(3, 0, 0, (2, 3), (3,)),
        PartitionImage(3, 0, 0, (3, 1), (3, 1)),
    )
    error = refusal(world, TopicSpec("u", assignments={0: [2]}))
    assert error.code is CODES.INVALID_REPLICA_ASSIGNMENT
    assert "is running" in str(error)


def test_brokers_that_do_not_run_get_replicas_only_when_the_others_are_too_few() -> None:
    world = World({1: None, 2: None, 3: None}, down=[2])
    two, three = world.create(TopicSpec("two", 4, 2), TopicSpec("three", 4, 3))
    assert all(set(partition.replicas) == {1, 3} for partition in two.partitions)
    assert all(set(partition.isr) == {1, 3} for partition in three.partitions)
    assert all(partition.leader in (1, 3) for partition in three.partitions)
    nobody = World({1: None}, down=[1])
    assert "; 0 can be used" in str(refusal(nobody, TopicSpec("t", 1, 1)))


RACKS = st.integers(1, 4).flatmap(
    lambda racks: st.integers(1, 3).map(
        lambda each: {broker: f"rack-{broker % racks}" for broker in range(racks * each)}
    )
)
NO_RACKS = st.integers(1, 9).map(lambda count: dict[int, str | None].fromkeys(range(count)))


def even(counts: Counter[int], brokers: Mapping[int, object], slack: int = 1) -> bool:
    each = [counts[broker] for broker in brokers]
    return max(each) - min(each) <= slack


@settings(deadline=None)
@given(RACKS | NO_RACKS, st.integers(1, 40), st.integers(0, 40), st.data())
def test_placement_is_distinct_even_and_spread_over_racks(
    brokers: dict[int, str | None], count: int, more: int, data: st.DataObject
) -> None:
    replication_factor = data.draw(st.integers(1, len(brokers)))
    world = World(brokers)
    world.create(TopicSpec("t", count, replication_factor))
    if more:
        decision = create_partitions(world.image, "t", count + more, None, world.rules)
        world.carry_out(decision)
    topic = world.image.topics["t"]
    assert len(topic.partitions) == count + more
    racks = set(brokers.values())
    for partition in topic.partitions:
        assert len(set(partition.replicas)) == replication_factor
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        by_rack = Counter(brokers[broker] for broker in partition.replicas)
        assert max(by_rack.values()) <= -(-replication_factor // len(racks))
    assert even(Counter(id for row in topic.partitions for id in row.replicas), brokers)
    assert even(Counter(row.leader for row in topic.partitions), brokers, slack=2)


@pytest.mark.parametrize("name", ["a", "orders", "x.y"])
@pytest.mark.parametrize("replication_factor", [1, 2, 3])
def test_three_brokers_lead_a_third_each(name: str, replication_factor: int) -> None:
    world = World({1: None, 2: None, 3: None})
    (topic,) = world.create(TopicSpec(name, 6, replication_factor))
    assert Counter(row.leader for row in topic.partitions) == {1: 2, 2: 2, 3: 2}


@settings(deadline=None)
@given(NO_RACKS, st.lists(st.integers(1, 3), min_size=1, max_size=30))
def test_many_small_topics_are_even_together(
    brokers: dict[int, str | None], counts: list[int]
) -> None:
    world = World(brokers)
    world.create(*(TopicSpec(f"t{number}", count, 1) for number, count in enumerate(counts)))
    replicas = Counter(
        row.leader for topic in world.image.topics.values() for row in topic.partitions
    )
    assert even(replicas, brokers, slack=3)
    assert replicas == Counter(world.image.replica_counts)


def test_the_partners_of_a_broker_differ_from_partition_to_partition() -> None:
    world = World(dict.fromkeys(range(6)))
    (topic,) = world.create(TopicSpec("t", 60, 2))
    pairs = {frozenset(partition.replicas) for partition in topic.partitions}
    assert len(pairs) > 10


def test_a_topic_grows_and_keeps_what_it_has() -> None:
    world = World({1: None, 2: None})
    (before,) = world.create(TopicSpec("t", 70, 2))
    decision = create_partitions(world.image, "t", 150, None, world.rules)
    keys = [write.key for write in decision.writes if isinstance(write, Put)]
    assert keys == [chunk_key(before.id, 1), chunk_key(before.id, 2), topic_key("t")]
    world.carry_out(decision)
    after = world.image.topics["t"]
    assert after.partitions[:70] == before.partitions
    assert len(after.partitions) == 150
    by_hand = create_partitions(world.image, "t", 152, [[2, 1], [1, 2]], world.rules)
    world.carry_out(by_hand)
    assert [row.replicas for row in world.image.topics["t"].partitions[150:]] == [(2, 1), (1, 2)]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("none", 2, None, CODES.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 3, None, CODES.INVALID_PARTITIONS),
        ("t", 1, None, CODES.INVALID_PARTITIONS),
        ("t", 0, None, CODES.INVALID_PARTITIONS),
        ("t", 5, [[1]], CODES.INVALID_REPLICA_ASSIGNMENT),
        ("t", 4, [[9]], CODES.INVALID_REPLICA_ASSIGNMENT),
        ("t", 4, [[1, 2]], CODES.INVALID_REPLICA_ASSIGNMENT),
        ("t", 9, None, CODES.POLICY_VIOLATION),
        ("t", 2**31 - 1, None, CODES.POLICY_VIOLATION),
    ],
)
def test_growth_that_is_none_or_too_much_is_refused(
    name: str, count: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    world = World({1: None, 2: None}, static={"penstock.partitions.per.request.max": "5"})
    world.create(TopicSpec("t", 3, 1))
    with pytest.raises(BrokerError) as refused:
        create_partitions(world.image, name, count, assignments, world.rules)
    assert refused.value.code is code


def test_a_deletion_leaves_a_tombstone_and_nothing_else() -> None:
    world = World()
    keys_before = set(world.entries)
    (topic,) = world.create(TopicSpec("t", 130, config={"retention.ms": "1"}))
    (outcome,) = delete_topics(world.image, [topic.id], world.rules)
    assert isinstance(outcome, Decision)
    assert outcome.result is topic
    world.carry_out(outcome)
    (tombstone,) = set(world.entries) - keys_before
    assert tombstone.startswith("dead/")


def test_what_cannot_be_deleted_is_refused_one_by_one() -> None:
    world = World()
    (topic,) = world.create(TopicSpec("t"))
    outcomes = delete_topics(world.image, ["t", topic.id, "none", bytes(16)], world.rules)
    assert [it.code if isinstance(it, BrokerError) else it.result.name for it in outcomes] == [
        "t",
        CODES.INVALID_REQUEST,
        CODES.UNKNOWN_TOPIC_OR_PARTITION,
        CODES.UNKNOWN_TOPIC_ID,
    ]
    world.static = {"delete.topic.enable": "false"}
    (outcome,) = delete_topics(world.image, ["t"], world.rules)
    assert isinstance(outcome, BrokerError)
    assert outcome.code is CODES.TOPIC_DELETION_DISABLED


def test_a_deleted_topics_name_can_be_used_again_and_no_longer_collides() -> None:
    world = World()
    (old,) = world.create(TopicSpec("a.b"))
    (outcome,) = delete_topics(world.image, ["a.b"], world.rules)
    assert isinstance(outcome, Decision)
    world.carry_out(outcome)
    (new,) = world.create(TopicSpec("a_b"))
    assert new.id != old.id


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_isr"), [(1, 1, "1"), (2, 2, "2"), (5, 3, "2")]
)
def test_the_coordinators_topics_have_as_many_replicas_as_there_are_brokers(
    brokers: int, replicas: int, min_isr: str
) -> None:
    world = World(dict.fromkeys(range(1, brokers + 1)))
    for name in ("__consumer_offsets", "__transaction_state"):
        (topic,) = world.create(automatic_topic(world.image, name, world.rules))
        assert topic.is_internal
        assert (len(topic.partitions), topic.replication_factor) == (50, replicas)
        assert topic.config["cleanup.policy"] == "compact"
        assert topic.config["min.insync.replicas"] == min_isr
    assert automatic_topic(world.image, "other", world.rules) == TopicSpec("other")


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    world = World()
    for first in (0, 1000, 2000):
        decision = allocate_producer_ids(world.image)
        assert decision.result == range(first, first + 1000)
        world.carry_out(decision)


def test_what_a_broken_creation_left_behind_is_cleared() -> None:
    world = World()
    orphan = world.new_id()
    world.create(TopicSpec("t"))
    world.write([Put(chunk_key(orphan, 0), encode_chunk([PartitionImage(1, 0, 0, (1,), (1,))]))])
    (decision,) = remove_orphans(world.image)
    assert [type(write) for write in decision.writes] == [DeletePrefix]
    world.carry_out(decision)
    assert remove_orphans(world.image) == []
    assert world.image.partition_count == 1
