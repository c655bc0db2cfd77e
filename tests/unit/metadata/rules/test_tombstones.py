"""A deleted topic is forgotten when nobody can hold data of it."""

from penstock.metadata.rules.controller import TopicSpec, delete_topics
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.registration import unregister_broker
from penstock.metadata.rules.tombstones import forget_tombstones
from penstock.model.ids import TopicId
from tests.unit.metadata.worlds import THREE, World


def deleted(world: World, name: str) -> TopicId:
    (topic,) = world.create(TopicSpec(name))
    (outcome,) = delete_topics(world.image, [name], world.rules)
    assert isinstance(outcome, Decision)
    world.carry_out(outcome)
    return topic.id


def test_every_registered_broker_must_have_confirmed_also_one_that_does_not_run() -> None:
    world = World(THREE, down=[3])
    gone, other = deleted(world, "t"), deleted(world, "u")
    assert forget_tombstones(world.image, {1: [gone], 2: [gone]}) == []
    assert forget_tombstones(world.image, {1: [gone], 2: [gone], 3: [other]}) == []
    world.carry_out_all(unregister_broker(world.image, 3, world.rules))
    (decision,) = forget_tombstones(world.image, {1: [gone, other], 2: [gone], 9: []})
    world.carry_out(decision)
    assert list(world.image.tombstones) == [other]


def test_a_confirmation_does_not_hold_for_a_broker_that_registers_meanwhile() -> None:
    world = World(THREE)
    gone = deleted(world, "t")
    (decision,) = forget_tombstones(world.image, dict.fromkeys(THREE, (gone,)))
    world.add_broker(4)
    assert forget_tombstones(world.image, dict.fromkeys(THREE, (gone,))) == []
    assert len(decision.compares) == 4
    assert forget_tombstones(World({}).image, {}) == []
