"""Checks of brokers' settings and versions: what does nothing, and what differs between brokers."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from penstock.client.settings import Settings
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Check, Found, Severity, listed
from penstock.model.configs import without_effect
from penstock.model.errors import InvalidConfig
from penstock.model.features import range_of

_OWN: Final = frozenset(  # differ between brokers for good reasons
    {
        "broker.id", "node.id", "broker.rack", "listeners", "advertised.listeners", "log.dir",
        "log.dirs", "metadata.log.dir", "penstock.http", "penstock.metadata", "cordoned.log.dirs",
    }
)  # fmt: skip


def _ineffective(settings: Settings) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        try:
            found.update(without_effect({name: value}))
        except InvalidConfig:  # of a broker that is newer than this command
            continue
    return found


def _no_effect(facts: ClusterFacts) -> Iterator[Found]:
    if not facts.is_penstock:
        return
    reasons: dict[str, str] = {}
    for settings in facts.brokers.values():
        reasons.update(_ineffective(settings))
    if reasons:
        names = sorted(reasons)
        yield Found(
            f"set, and without effect: {listed(names)} ({names[0]}: {reasons[names[0]]})",
            "remove them; see docs/settings-without-effect.md",
            names,
        )


def _differing(facts: ClusterFacts) -> Iterator[Found]:
    values: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    names = {name for settings in facts.brokers.values() for name in settings} - _OWN
    for settings in facts.brokers.values():
        for name in names:
            values[name][settings.get(name)] += 1
    found = sorted(name for name, counts in values.items() if len(counts) > 1)
    if found:
        shown = " and ".join(str(value) for value in list(values[found[0]])[:2])
        yield Found(
            f"brokers differ in: {listed(found)} ({found[0]}: {shown})",
            "set the same on every broker, and restart those that differ",
            found,
        )


def _versions(facts: ClusterFacts) -> Iterator[Found]:
    if facts.features is None:
        return
    features = facts.features
    found = [
        name
        for name in features.names
        if len({range_of(name, ranges) for ranges in features.supported.values()}) > 1
    ]
    if found:
        levels = [
            f"broker {broker_id} supports {range_of(found[0], ranges)}"
            for broker_id, ranges in sorted(features.supported.items())
        ]
        yield Found(
            f"brokers support different levels of {listed(found)}: {listed(levels)}",
            "finish the upgrade: install the same version on every broker",
            found,
        )


def _behind(facts: ClusterFacts) -> Iterator[Found]:
    features = facts.features
    if features is None or not features.supported:
        return
    found = [
        f"{name} is at {features.levels.get(name, 0)}, and could be at {features.highest(name)}"
        for name in features.names
        if features.levels.get(name, 0) < features.highest(name)
    ]
    if found:
        yield Found(listed(found), "penstock cluster features upgrade --dry-run", found)


_W, _N = Severity.WARNING, Severity.NOTE

SETTINGS_CHECKS: Final[tuple[Check[ClusterFacts], ...]] = (
    Check("settings-without-effect", _N, "a broker has a setting that changes nothing", "Whoever set it expects something that does not happen.", _no_effect),
    Check("settings-differ", _W, "brokers have different values of a setting", "The cluster behaves in one way or another, by which broker leads.", _differing),
    Check("version-skew", _W, "brokers support different levels of a feature", "An upgrade that is not finished keeps new features off.", _versions),
    Check("features-behind", _N, "a feature is below the level that every broker supports", "What the newer level brings is off.", _behind),
)  # fmt: skip
