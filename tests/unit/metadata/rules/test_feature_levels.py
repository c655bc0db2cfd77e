"""Levels are raised to what every member supports, and lowered only by who asks for it in so many words."""

import pytest

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.feature_levels import (
    LevelChange,
    LevelsRefused,
    UnsupportedLevel,
    UpgradeType,
    check_levels,
    check_stored_levels,
    first_levels,
    in_force,
    update_features,
)
from penstock.metadata.rules.registration import brokers_to_register, register_broker
from penstock.metadata.store import NO_REVISION, Put
from penstock.metadata.values import (
    LiveBroker,
    Registration,
    decode,
    decode_live,
    decode_registration,
    encode,
    encode_live,
    encode_registration,
    feature_key,
    live_key,
    registration_key,
)
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.features import UNTOLD, Levels, Ranges
from tests.unit.metadata.worlds import THREE, World

UP, SAFE, UNSAFE = UpgradeType
OLD: Ranges = {**UNTOLD, "group.version": Levels(0, 0), "transaction.version": Levels(0, 1)}
NEW: Ranges = {**UNTOLD, "share.version": Levels(0, 1)}


def live(ranges: Ranges) -> LiveBroker:
    return LiveBroker("i", {}, None, "d", 1, features=ranges)


def world_of(*ranges: Ranges, levels: Ranges | None = None) -> World:
    """A broker with each of these, in a cluster that was made by one with `levels` (the first)."""
    world = World({})
    world.write(first_levels(levels or ranges[0]))
    for broker_id, told in enumerate(ranges, 1):
        world.write([Put(live_key(broker_id), encode_live(live(told)))])
        world.carry_out_all(register_broker(world.image, broker_id, world.rules))
    return world


def refusal(world: World, *changes: tuple[str, int, int]) -> dict[str, str]:
    with pytest.raises(LevelsRefused) as refused:
        update_features(world.image, [LevelChange(*change) for change in changes])
    codes = {error.code for error in refused.value.errors.values()}
    assert codes == {ErrorCode.INVALID_UPDATE_VERSION}
    return {name: str(error) for name, error in refused.value.errors.items()}


def update(world: World, *changes: tuple[str, int, int]) -> None:
    world.carry_out(update_features(world.image, [LevelChange(*change) for change in changes]))


# What is stored ----------------------------------------------------------------------------------


def test_a_new_cluster_has_the_highest_levels_of_its_first_broker() -> None:
    world = world_of(OLD)
    expected = {"group.version": 0, "penstock.version": 1, "transaction.version": 1}
    assert in_force(world.image) == expected


def test_a_cluster_from_before_levels_were_kept_has_those_that_it_behaved_by() -> None:
    world = World(THREE)
    expected = {"group.version": 1, "penstock.version": 1, "transaction.version": 2}
    assert in_force(world.image) == expected
    assert world.image.features_epoch == NO_REVISION
    update(world, ("transaction.version", 1, SAFE))
    assert world.image.features == {**expected, "transaction.version": 1}, (
        "all are kept from now on"
    )
    assert world.image.features_epoch == world.revision


def test_what_brokers_tell_is_kept_when_they_are_gone() -> None:
    world = world_of(UNTOLD, OLD, levels=OLD)
    assert world.image.registrations[2].features == OLD
    world.stop(2)
    assert "broker 2" in refusal(world, ("transaction.version", 2, UP))["transaction.version"]


def test_brokers_that_tell_nothing_have_the_ranges_of_before() -> None:
    told = decode("live/1", encode_live(live(OLD)))
    assert decode_live(told).features == OLD
    del told["features"]
    assert decode_live(told).features == UNTOLD
    known = decode("reg/1", encode_registration(Registration(1, None, False, "d", features=OLD)))
    assert decode_registration(known).features == OLD
    del known["features"]
    assert decode_registration(known).features == UNTOLD


def test_the_epoch_of_features_grows_with_them_and_with_nothing_else() -> None:
    world = world_of(UNTOLD, levels=OLD)
    before = world.image.features_epoch
    world.start(2)
    assert world.image.features_epoch == before
    update(world, ("transaction.version", 2, UP))
    assert world.image.features_epoch > before


def test_a_change_of_levels_is_told_to_listeners() -> None:
    world = world_of(UNTOLD)
    old = ClusterImage.of(world.snapshot)
    delta = world.write([Put(feature_key("transaction.version"), encode(level=1))])
    assert delta.features
    assert not delta.is_empty
    assert world.image.since(old).features


# Changing ----------------------------------------------------------------------------------------


def test_levels_that_every_broker_supports_are_raised_together() -> None:
    world = world_of(UNTOLD, UNTOLD, levels=OLD)
    update(world, ("transaction.version", 2, UP), ("group.version", 1, UP))
    assert in_force(world.image)["transaction.version"] == 2
    assert in_force(world.image)["group.version"] == 1


def test_what_is_at_the_level_already_is_left_alone() -> None:
    world = world_of(UNTOLD)
    decision = update_features(world.image, [LevelChange("transaction.version", 2, UP)])
    assert decision.writes == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("transaction.version", 2, UP), "level 2 is not supported by broker 2, which has 0 to 1"),
        (("share.version", 1, UP), "broker 1 does not know this feature"),
        (("penstock.version", 0, UNSAFE), "level 0 is not supported by broker 1, which has 1"),
        (("transaction.version", -1, UP), "level -1; the least is 0"),
        (("transaction.version", 1, 0), "unknown upgrade type 0"),
        (("transaction.version", 1, 4), "unknown upgrade type 4"),
        (("transaction.version", 0, UP), "ask for a downgrade"),
        (("transaction.version", 1, SAFE), "level 1 is no downgrade: it is at 1"),
        (("transaction.version", 0, SAFE), "only an unsafe downgrade goes there"),
    ],
)
def test_a_level_is_refused_with_its_reason(change: tuple[str, int, int], reason: str) -> None:
    world = world_of(UNTOLD, OLD, levels=OLD)
    assert reason in refusal(world, change)[change[0]]


def test_a_downgrade_that_loses_nothing_is_safe_and_any_other_is_not() -> None:
    world = world_of(UNTOLD)
    update(world, ("transaction.version", 1, SAFE))
    assert in_force(world.image)["transaction.version"] == 1
    assert "unsafe" in refusal(world, ("group.version", 0, SAFE))["group.version"]
    update(world, ("group.version", 0, UNSAFE), ("transaction.version", 0, UNSAFE))
    assert in_force(world.image) == {
        "group.version": 0,
        "penstock.version": 1,
        "transaction.version": 0,
    }


def test_all_are_changed_or_none() -> None:
    world = world_of(UNTOLD, OLD, levels={**OLD, "transaction.version": Levels(0, 0)})
    reasons = refusal(world, ("transaction.version", 1, UP), ("group.version", 1, UP))
    assert list(reasons) == ["group.version"]
    with pytest.raises(BrokerError) as twice:
        update_features(world.image, [LevelChange("group.version", 0, UP)] * 2)
    assert twice.value.code is ErrorCode.INVALID_REQUEST


# Joining -----------------------------------------------------------------------------------------


def test_a_broker_that_does_not_support_a_level_is_refused() -> None:
    world = world_of(UNTOLD)
    check_levels(world.image, UNTOLD)
    check_levels(world.image, NEW)
    with pytest.raises(UnsupportedLevel, match=r"group\.version at level 1.* supports 0: start it"):
        check_levels(world.image, OLD)


def test_levels_are_checked_before_anything_else_is_read() -> None:
    world = world_of(NEW)
    check_stored_levels(world.snapshot._replace(entries={}), OLD)
    entries = {key: it for key, it in world.entries.items() if key.startswith("feat/")}
    with pytest.raises(UnsupportedLevel, match=r"share\.version at level 1"):
        check_stored_levels(world.snapshot._replace(entries=entries), UNTOLD)


def test_a_broker_that_started_while_the_level_was_raised_is_not_registered() -> None:
    world = world_of(UNTOLD)
    world.write([Put(live_key(2), encode_live(live(OLD)))])
    assert brokers_to_register(world.image) == [2]
    assert register_broker(world.image, 2, world.rules) == []
    assert registration_key(2) not in world.entries
