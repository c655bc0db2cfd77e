"""The image: what changes do to it, and that the way to a state does not matter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource, alter_configs
from penstock.metadata.rules.controller import (
    TopicSpec,
    create_partitions,
    delete_topics,
)
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.store import Change, Changes, Delete, Put, Revision, StoreError
from penstock.metadata.values import (
    CONTROLLER,
    META,
    PartitionImage,
    chunk_key,
    decode,
    decode_chunk,
    encode,
    encode_chunk,
    live_key,
    registration_key,
    topic_key,
)
from penstock.model.errors import BrokerError
from tests.unit.metadata.worlds import World, come_back, state


def test_a_created_topic_is_found_by_name_and_by_id() -> None:
    world = World()
    (topic,) = world.create(TopicSpec("orders", 3, config={"retention.ms": "1h"}))
    assert world.image.topics["orders"] is topic
    assert world.image.topics_by_id[topic.id] is topic
    assert len(topic.partitions) == 3
    assert topic.config == {"retention.ms": "3600000"}
    assert topic.partitions[0] == PartitionImage(1, 0, 0, (1,), (1,))
    assert not topic.is_internal
    assert world.image.partition_count == 3
    assert world.image.leaderless_count == 0


def test_each_change_is_told_once_by_its_kind() -> None:
    world = World()
    delta = world.write([Put(META, encode(cluster_id="c"))])
    assert delta.is_empty
    assert world.image.cluster_id == "c"
    delta = world.write([Put(CONTROLLER, encode(broker=1, epoch=1))])
    assert delta.controller
    assert (world.image.controller_id, world.image.controller_epoch) == (1, world.revision)
    assert world.write([Delete(CONTROLLER)]).controller
    assert world.image.controller_id is None
    (topic,) = world.create(TopicSpec("t"))
    grown = world.carry_out(create_partitions(world.image, "t", 2, None, world.rules))
    assert [change.is_grown for change in grown.changed] == [True]
    assert not grown.changed[0].is_reconfigured
    first, second = grown.changed[0].new.partitions
    assert list(grown.changed[0].changed_partitions()) == [(1, None, second)]
    delta = world.write(
        [Put(chunk_key(topic.id, 0), encode_chunk([first._replace(leader=-1), second]))]
    )
    after = first._replace(leader=-1)
    assert list(delta.changed[0].changed_partitions()) == [(0, first, after)]
    world.write([Put(chunk_key(topic.id, 0), encode_chunk([first, second]))])
    ops = [ConfigOp("retention.ms", Op.SET, "1")]
    decision = alter_configs(world.image, Resource.TOPIC, "t", ops, world.layers)
    changed = world.carry_out(decision)
    assert [change.is_reconfigured for change in changed.changed] == [True]
    (deletion,) = delete_topics(world.image, ["t"], world.rules)
    assert isinstance(deletion, Decision)
    gone = world.carry_out(deletion)
    assert [topic.name for topic in gone.deleted] == ["t"]
    assert not gone.changed
    assert not world.image.topics
    assert not world.image.topics_by_id
    assert world.image.tombstones == {topic.id: "t"}


def test_a_topic_deleted_and_created_between_two_looks_is_both() -> None:
    world = World()
    (old,) = world.create(TopicSpec("t"))
    behind = ClusterImage.of(world.snapshot)
    seen = world.revision
    (deletion,) = delete_topics(world.image, ["t"], world.rules)
    assert isinstance(deletion, Decision)
    world.carry_out(deletion)
    (new,) = world.create(TopicSpec("t", 2))
    gone = chunk_key(old.id, 0)
    recent = [Change(gone, Revision(seen + 1), None)] + [
        Change(key, entry.mod_revision, entry)
        for key, entry in world.entries.items()
        if entry.mod_revision > seen
    ]
    delta = behind.apply(Changes(world.revision, recent))
    assert (delta.deleted, delta.created, delta.changed) == ([old], [new], [])
    assert state(behind) == state(world.image)


def test_what_is_known_already_is_not_applied_again() -> None:
    world = World()
    world.create(TopicSpec("t"))
    stale = Change(topic_key("t"), Revision(1), None)
    assert world.image.apply(Changes(world.revision, [stale])).is_empty
    assert "t" in world.image.topics


def test_partitions_are_visible_only_when_the_topic_counts_them() -> None:
    world = World()
    topic_id = world.new_id()
    rows = [PartitionImage(1, 0, 0, (1,), (1,))] * 2
    assert world.write([Put(chunk_key(topic_id, 0), encode_chunk(rows))]).is_empty
    assert world.image.orphans() == [topic_id]
    row = encode(id="AAAAAAAAAAAAAAAAAAAAAQ", partitions=1)
    delta = world.write([Put(topic_key("t"), row)])
    assert [len(topic.partitions) for topic in delta.created] == [1]
    assert world.image.orphans() == []


def test_a_large_topic_is_whole_across_its_chunks() -> None:
    world = World({1: None, 2: None})
    (topic,) = world.create(TopicSpec("wide", 200))
    assert len(topic.partitions) == 200
    assert len([key for key in world.entries if key.startswith("p/")]) == 4
    assert len(world.image.chunks_on(1)) == 4


def test_a_broker_takes_part_only_with_a_session_that_the_controller_knows() -> None:
    world = World({1: "r1", 2: None}, down=[2])
    one, two = world.image.brokers[1], world.image.brokers[2]
    assert (one.fenced, one.rack, one.listeners["PLAINTEXT"].port) == (False, "r1", 9092)
    assert one.epoch == world.entries[live_key(1)].create_revision
    assert (two.fenced, two.epoch) == (True, 0)
    assert [broker.id for broker in world.image.usable_brokers()] == [1]
    live = world.entries[live_key(1)].value
    world.write([Delete(live_key(1))])
    assert world.image.brokers[1].fenced
    delta = world.write([Put(live_key(1), live)])
    assert delta.brokers == [1]
    assert world.image.brokers[1].fenced
    world.write([Delete(live_key(1)), Delete(registration_key(1))])
    assert 1 not in world.image.brokers


def test_a_value_of_a_newer_version_is_refused_and_an_unknown_kind_of_key_is_not() -> None:
    world = World()
    with pytest.raises(StoreError, match="t/x has version 2; this broker understands 1: upgrade"):
        world.write([Put(topic_key("x"), b'{"v":2}')])
    with pytest.raises(StoreError, match="t/x cannot be read"):
        world.write([Put(topic_key("x"), b"{")])
    assert world.write([Put("acl/1", b"whatever")]).is_empty


def test_the_difference_of_two_images_is_what_the_changes_between_them_told() -> None:
    world = World({1: None})
    world.create(TopicSpec("kept"), TopicSpec("gone"), TopicSpec("grown"), TopicSpec("renewed"))
    for group in ("left", "kept"):
        world.write([Put(f"cfg/group/{group}", encode(set={"a": "1"}))])
    before = ClusterImage.of(world.snapshot)
    for outcome in delete_topics(world.image, ["gone", "renewed"], world.rules):
        assert isinstance(outcome, Decision)
        world.carry_out(outcome)
    world.carry_out(create_partitions(world.image, "grown", 5, None, world.rules))
    world.create(TopicSpec("new"), TopicSpec("renewed"))
    world.add_broker(2)
    world.write([Put("cfg/broker/", encode(set={"log.retention.ms": "1"}))])
    world.write([Delete("cfg/group/left"), Put("cfg/group/g", encode(set={"a": "2"}))])
    world.write([Put(CONTROLLER, encode(broker=2, epoch=1))])
    delta = ClusterImage.of(world.snapshot).since(before)
    assert sorted(topic.name for topic in delta.created) == ["new", "renewed"]
    assert sorted(topic.name for topic in delta.deleted) == ["gone", "renewed"]
    assert [change.new.name for change in delta.changed] == ["grown"]
    assert (delta.brokers, delta.controller, delta.broker_configs) == ([2], True, True)
    assert delta.group_configs == ["g", "left"]


NODES = st.lists(st.integers(0, 5), unique=True, max_size=4).map(tuple)
PARTITIONS = st.builds(
    PartitionImage,
    leader=st.integers(-1, 5),
    leader_epoch=st.integers(0, 2**31 - 1),
    partition_epoch=st.integers(0, 2**31 - 1),
    replicas=NODES,
    isr=NODES,
    elr=NODES | st.just(()),
    adding=NODES | st.just(()),
    removing=NODES | st.just(()),
    recovering=st.booleans(),
    last_known_elr=NODES | st.just(()),
    unclean_epoch=st.integers(-1, 2**31 - 1),
)


@settings(deadline=None)
@given(st.lists(PARTITIONS, max_size=8))
def test_partitions_survive_being_written_and_read(partitions: list[PartitionImage]) -> None:
    fields = decode("p/x/0", encode_chunk(partitions))
    assert decode_chunk(fields, {}) == tuple(partitions)


def test_a_partition_of_an_earlier_version_has_had_no_unclean_election() -> None:
    rows = [
        [1, 2, 3, [1], [1]],
        [1, 2, 3, [1], [1], [], [], [], 1],
        [1, 2, 3, [1], [], [], [], [], 0, [1]],
    ]
    for partition in decode_chunk({"p": rows}, {}):
        assert partition.unclean_epoch == -1


NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "e"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.integers(1, 130)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("grow"), NAMES, st.integers(1, 200)),
    st.tuples(st.just("configure"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("restart"), st.just(""), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=15))
def test_an_image_grown_change_by_change_equals_one_made_from_a_snapshot(
    steps: list[tuple[str, str, int]],
) -> None:
    world = World({1: "x", 2: "y", 3: None})
    for what, name, number in steps:
        try:
            take(world, what, name, number)
        except BrokerError:
            continue
    assert state(world.image) == state(ClusterImage.of(world.snapshot))
    assert world.image.partition_count == sum(
        len(topic.partitions) for topic in world.image.topics.values()
    )


def take(world: World, what: str, name: str, number: int) -> None:
    match what:
        case "create":
            world.create(TopicSpec(name, number, 1 + number % 3))
        case "delete":
            (outcome,) = delete_topics(world.image, [name], world.rules)
            if isinstance(outcome, Decision):
                world.carry_out(outcome)
        case "grow":
            world.carry_out(create_partitions(world.image, name, number, None, world.rules))
        case "configure":
            op = ConfigOp("retention.ms", Op.SET if number > 1 else Op.DELETE, str(number))
            decision = alter_configs(world.image, Resource.TOPIC, name, [op], world.layers)
            world.carry_out(decision)
        case _:
            come_back(world, number)


def test_partitions_with_equal_replicas_share_one_tuple() -> None:
    world = World({1: None, 2: None})
    (topic,) = world.create(TopicSpec("t", 10, 2))
    again = ClusterImage.of(world.snapshot).topics["t"]
    assert again == topic
    assert len({id(partition.replicas) for partition in again.partitions}) <= 2
