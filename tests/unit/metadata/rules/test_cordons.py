"""A broker that is to leave gets nothing new, and keeps what it has until that is moved."""

import pytest

from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource, alter_configs
from penstock.metadata.rules.controller import TopicSpec, create_partitions
from penstock.metadata.rules.cordons import CORDON, cordoned, is_cordoned
from penstock.metadata.rules.internal_topics import raise_internal_replication
from penstock.metadata.rules.reassignment import alter_reassignments
from penstock.metadata.rules.registration import unregister_broker
from penstock.metadata.store import Put
from penstock.metadata.values import LiveBroker, broker_config_key, encode, encode_live, live_key
from penstock.model.errors import BrokerError, ErrorCode, InvalidConfig
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import THREE, World, lose

AT = TopicPartition("t", 0)
FOUR = {**THREE, 4: None}


def set_cordon(world: World, broker_id: int, value: str | None = "*") -> None:
    op = ConfigOp(CORDON, Op.DELETE if value is None else Op.SET, value)
    decision = alter_configs(world.image, Resource.BROKER, str(broker_id), [op], world.layers)
    world.carry_out(decision)


def moved(world: World, *replicas: int) -> BrokerError | None:
    answers = alter_reassignments(world.image, world.rules, {AT: replicas})
    world.carry_out_all(answers.decisions)
    return answers.errors[AT]


def test_new_topics_and_partitions_pass_by_a_cordoned_broker() -> None:
    world = World(FOUR)
    set_cordon(world, 2)
    (topic,) = world.create(TopicSpec("t", 12, 3))
    assert all(2 not in partition.replicas for partition in topic.partitions)
    world.carry_out(create_partitions(world.image, "t", 24, None, world.rules))
    grown = world.image.topics["t"].partitions
    assert len(grown) == 24
    assert all(2 not in partition.replicas for partition in grown)
    set_cordon(world, 2, None)
    (topic,) = world.create(TopicSpec("u", 12, 3))
    assert any(2 in partition.replicas for partition in topic.partitions)


def test_who_asks_for_more_replicas_than_there_are_open_brokers_is_refused() -> None:
    world = World(THREE)
    set_cordon(world, 2)
    with pytest.raises(BrokerError, match="2 can be used") as refused:
        world.create(TopicSpec("t", 1, 3))
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    (topic,) = world.create(TopicSpec("t"))
    assert topic.replication_factor == 2, "the default follows"


def test_a_cordoned_broker_is_refused_by_name() -> None:
    world = World(THREE)
    set_cordon(world, 2)
    with pytest.raises(BrokerError, match=r"brokers \[2\], which get no new replicas") as refused:
        world.create(TopicSpec("t", assignments={0: (1, 2)}))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_replicas_leave_a_cordoned_broker_and_none_go_there() -> None:
    world = World(FOUR)
    world.create(TopicSpec("t", assignments={0: (1, 2)}))
    set_cordon(world, 2)
    set_cordon(world, 4)
    refused = moved(world, 1, 4)
    assert refused is not None
    assert (refused.code, CORDON in str(refused)) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, True)
    assert moved(world, 2, 1) is None, "it is there already"
    assert moved(world, 1, 2, 3) is None
    assert moved(world, 1, 3) is None


def test_internal_topics_do_not_grow_onto_a_cordoned_broker() -> None:
    world = World({1: None, 2: None})
    world.create(TopicSpec("__consumer_offsets", assignments={0: (1,)}))
    set_cordon(world, 2)
    assert raise_internal_replication(world.image, world.rules) == []
    set_cordon(world, 2, "")
    assert raise_internal_replication(world.image, world.rules) != []


def test_a_broker_that_is_struck_off_takes_its_cordon_with_it() -> None:
    world = World(THREE)
    set_cordon(world, 2)
    world.write([Put(broker_config_key("3"), encode(set={CORDON: "*", "message.max.bytes": "9"}))])
    for broker_id in (2, 3):
        lose(world, broker_id)
        assert is_cordoned(world.image, broker_id), "it may come back"
        world.carry_out_all(unregister_broker(world.image, broker_id, world.rules))
    assert world.image.broker_configs == {"3": {"message.max.bytes": "9"}}


def test_what_its_own_file_says_counts_unless_something_else_was_set_since() -> None:
    world = World(THREE)
    live = LiveBroker("i", {}, None, "dir-2", 1, is_cordoned=True)
    world.write([Put(live_key(2), encode_live(live))])
    assert cordoned(world.image, [1, 2, 3]) == [2]
    set_cordon(world, 2, "")
    assert not is_cordoned(world.image, 2)


def test_only_all_of_one_broker_can_be_cordoned() -> None:
    world = World(THREE)
    with pytest.raises(InvalidConfig):
        set_cordon(world, 2, "/somewhere")
    op = ConfigOp(CORDON, Op.SET, "*")
    with pytest.raises(BrokerError, match="one broker at a time"):
        alter_configs(world.image, Resource.BROKER, "", [op], world.layers)
