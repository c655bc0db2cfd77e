"""The levels of features that are in force, and how they are changed: only to what every broker of the cluster supports."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision, unchanged
from penstock.metadata.store import Put, Snapshot, StoreError
from penstock.metadata.values import FEATURES_PREFIX, decode, encode, feature_key
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.features import (
    LOSSLESS_DOWN_TO,
    PENSTOCK_VERSION,
    UNTOLD,
    Levels,
    Ranges,
    highest,
    misfit,
    range_of,
)

_EARLIEST: Final = highest(UNTOLD)


class UpgradeType(IntEnum):
    """As Kafka numbers them."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class LevelChange(NamedTuple):
    feature: str
    level: int
    kind: int  # an UpgradeType, if it is one


class LevelsRefused(BrokerError):
    """Why each feature in `errors` keeps its level. Then all of them do."""

    def __init__(self, errors: Mapping[str, BrokerError]) -> None:
        first = next(iter(errors.values()))
        super().__init__(str(first), first.code)
        self.errors = errors


class UnsupportedLevel(StoreError):
    """This broker and the cluster do not go together."""


def in_force(image: ClusterImage) -> Mapping[str, int]:
    """A cluster that was made before levels were kept behaves as it did then."""
    stored = image.features
    return stored if PENSTOCK_VERSION in stored else {**_EARLIEST, **stored}


def first_levels(ranges: Ranges) -> list[Put]:
    """Of a new cluster: the highest of its first broker."""
    return [_put(name, level) for name, level in highest(ranges).items()]


def check_levels(image: ClusterImage, ranges: Ranges) -> None:
    """Raise unless a broker with these ranges can take part."""
    _check(in_force(image), ranges)


def check_stored_levels(found: Snapshot, ranges: Ranges) -> None:
    """The same before anything else is read: in a newer cluster, nothing else may be readable."""
    levels = {
        key.removeprefix(FEATURES_PREFIX): decode(key, entry.value)["level"]
        for key, entry in found.entries.items()
    }
    _check(levels, ranges)


def _check(levels: Mapping[str, int], ranges: Ranges) -> None:
    reason = misfit(levels, ranges)
    if reason is not None:
        raise UnsupportedLevel(reason)


def ranges_by_broker(image: ClusterImage) -> dict[int, Ranges]:
    """Of every member, running or not; what runs speaks for itself."""
    registered = {broker_id: known.features for broker_id, known in image.registrations.items()}
    return registered | {broker_id: live.features for broker_id, live in image.live.items()}


def update_features(image: ClusterImage, changes: Sequence[LevelChange]) -> Decision[None]:
    """All of the changes or, with the reasons, none (KIP-1022)."""
    names = [change.feature for change in changes]
    if len(set(names)) < len(names):
        raise BrokerError("a feature is named more than once", ErrorCode.INVALID_REQUEST)
    refusals = {change.feature: _refusal(image, change) for change in changes}
    errors = {
        name: BrokerError(f"{name}: {reason}", ErrorCode.INVALID_UPDATE_VERSION)
        for name, reason in refusals.items()
        if reason is not None
    }
    if errors:
        raise LevelsRefused(errors)
    wanted = {**in_force(image), **{change.feature: change.level for change in changes}}
    puts = [_put(it, level) for it, level in wanted.items() if image.features.get(it) != level]
    return Decision(None, puts, [unchanged(image, put.key) for put in puts])


def _refusal(image: ClusterImage, change: LevelChange) -> str | None:
    """Kafka's checks, in its order."""
    name, level, kind = change
    present = in_force(image).get(name, 0)
    if kind not in set(UpgradeType):
        return f"unknown upgrade type {kind}; 1 is upgrade, 2 safe and 3 unsafe downgrade"
    if level < 0:
        return f"level {level}; the least is 0"
    for broker_id, ranges in sorted(ranges_by_broker(image).items()):
        if not range_of(name, ranges).includes(level):
            return _unsupported(level, broker_id, ranges.get(name))
    if level >= present:
        is_upgrade = kind == UpgradeType.UPGRADE
        return None if is_upgrade else f"level {level} is no downgrade: it is at {present}"
    if kind == UpgradeType.UPGRADE:
        return f"it is at level {present}: to go down to {level}, ask for a downgrade"
    if kind == UpgradeType.SAFE_DOWNGRADE and level < LOSSLESS_DOWN_TO.get(name, 0):
        return (
            f"what was stored at level {present} may not be readable at level {level}:"
            " only an unsafe downgrade goes there"
        )
    return None


def _unsupported(level: int, broker_id: int, levels: Levels | None) -> str:
    if levels is None:
        return f"broker {broker_id} does not know this feature"
    newer = level > levels.most
    remedy = "upgrade that broker, or unregister it if it is gone" if newer else "ask for more"
    return f"level {level} is not supported by broker {broker_id}, which has {levels}: {remedy}"


def _put(name: str, level: int) -> Put:
    return Put(feature_key(name), encode(level=level))
