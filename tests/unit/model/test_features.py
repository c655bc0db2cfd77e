"""A broker and a cluster go together when every level in force is in the broker's range."""

import pytest

from penstock.metadata.values import VERSION
from penstock.model.features import (
    LOSSLESS_DOWN_TO,
    PENSTOCK_VERSION,
    SUPPORTED,
    UNTOLD,
    Levels,
    highest,
    misfit,
)

RANGES = {"group.version": Levels(0, 1), "penstock.version": Levels(2, 3)}


def test_values_of_the_store_have_the_version_of_the_highest_level() -> None:
    assert SUPPORTED[PENSTOCK_VERSION].most == VERSION


def test_every_feature_says_how_far_down_nothing_is_lost() -> None:
    assert LOSSLESS_DOWN_TO.keys() == SUPPORTED.keys()
    assert all(SUPPORTED[name].includes(level) for name, level in LOSSLESS_DOWN_TO.items())


def test_a_cluster_from_before_levels_were_kept_can_be_joined() -> None:
    assert misfit(highest(UNTOLD), SUPPORTED) is None


@pytest.mark.parametrize(
    "levels",
    [
        {},
        {"group.version": 0, "penstock.version": 2},
        {"group.version": 1, "penstock.version": 3},
        {"share.version": 0},
    ],
)
def test_levels_in_the_range_fit(levels: dict[str, int]) -> None:
    assert misfit(levels, RANGES) is None


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        (
            {"group.version": 2},
            "the cluster has group.version at level 2, and this broker supports 0 to 1:"
            " start it with a newer version of Penstock",
        ),
        (
            {"share.version": 1},
            "the cluster has share.version at level 1, and this broker supports 0:"
            " start it with a newer version of Penstock",
        ),
        (
            {"penstock.version": 1},
            "the cluster has penstock.version at level 1, and this broker supports 2 to 3:"
            " raise the level first (penstock cluster features upgrade --to penstock.version=2),"
            " or start it with an older version of Penstock",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_both_sides_and_the_remedy(
    levels: dict[str, int], reason: str
) -> None:
    assert misfit(levels, RANGES) == reason
