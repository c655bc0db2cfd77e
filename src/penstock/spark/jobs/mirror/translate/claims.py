"""Decide which topics a translated link may write to, and what they need first.

The decision depends on what both clusters report. A link writes to topics that it created and, if
told to merge, to other topics of the target.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror import names
from penstock.spark.jobs.mirror.names import Topic
from penstock.spark.jobs.mirror.translate.links import Claim

_OWN: Final = "penstock."  # settings that only our brokers know
_TIMES: Final = "message.timestamp."  # whatever the source has: its records keep their times
_ANY_TIME: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "message.timestamp.after.max.ms": str((1 << 63) - 1),
}


class Merging(NamedTuple):
    """What else than the link's own copies may be written to."""

    own: bool = False  # topics of the target's own
    promoted: bool = False  # and copies that were promoted: only when a run begins, for what is promoted later must stay


class Verdict(NamedTuple):
    decision: names.Decision
    claim: Claim | None = None  # to be written down first, if it is not


def accepted(settings: Mapping[str, str], known: frozenset[str] | None) -> dict[str, str]:
    """What a copy gets of its source's settings. `known`: names that the target knows; None: nobody asked yet."""
    return {
        name: value
        for name, value in settings.items()
        if not name.startswith((_OWN, _TIMES)) and (known is None or name in known)
    }


def new_settings(source: Topic, replicas: int, known: frozenset[str]) -> dict[str, str]:
    """Of a topic that is made: it takes every time that a record may have."""
    times = {name: value for name, value in _ANY_TIME.items() if name in known}
    return {**accepted(names.copied_settings(source, replicas), known), **times}


def decide(
    source: Topic,
    target: Topic | None,
    *,
    name: str,
    claims: Mapping[str, Claim],
    back: Mapping[str, Claim],
    target_id: str,
    merge: Merging,
    known: frozenset[str] | None,
) -> Verdict:
    """`claims`: of this link. `back`: of the link from the target to the source. JobError: it cannot be copied."""
    if came_from(source, back, target_id):
        reason = f"{source.name!r} comes from the target cluster: it is not copied back"
        return Verdict(names.Skip(reason))
    claim = claims.get(name)
    if claim is not None and claim.source != source.name:
        raise JobError(
            f"topic {name!r} of the target is the copy of {claim.source!r}; copy {source.name!r} to another "
            "name with --rename"
        )
    wanted = Claim(source.name, source.topic_id.hex())
    if target is None:
        return Verdict(names.Create(source.partitions), wanted)
    if target.mirrors:
        raise JobError(
            f"topic {name!r} of the target is a mirror that keeps offsets; leave --translate out, or copy to "
            "another name with --rename"
        )
    return _existing(source, target, name, claim, wanted, merge=merge, known=known)


def came_from(source: Topic, back: Mapping[str, Claim], target_id: str) -> bool:
    """All of it: the source only has it from the target. What both write to is told apart record by record."""
    if source.mirrors and target_id in names.clusters(source.mirrors):
        return True
    claim = back.get(source.name)
    return claim is not None and not claim.is_merged and not claim.is_promoted


def _existing(
    source: Topic,
    target: Topic,
    name: str,
    claim: Claim | None,
    wanted: Claim,
    *,
    merge: Merging,
    known: frozenset[str] | None,
) -> Verdict:
    grow_to = source.partitions if source.partitions > target.partitions else None
    if claim is None or claim.is_promoted:
        if not (merge.own if claim is None else merge.promoted):
            was = "is its own" if claim is None else "was promoted: nothing more is copied to it"
            raise JobError(
                f"topic {name!r} of the target {was}; copy to another name with --rename, or, to add the source's "
                "records to it, give --merge (failback does)"
            )
        _check_same(claim, wanted, name)
        return Verdict(names.Adjust(grow_to, {}, ()), wanted._replace(is_merged=True))
    _check_same(claim, wanted, name)
    if claim.is_merged:
        return Verdict(names.Adjust(grow_to, {}, ()), claim)
    settings = accepted(names.copied_settings(source, target.replicas), known)
    has = accepted(names.copied_settings(target, target.replicas), known)
    changed = {key: value for key, value in settings.items() if has.get(key) != value}
    reset = tuple(sorted(has.keys() - settings.keys()))
    return Verdict(names.Adjust(grow_to, changed, reset), claim)


def _check_same(claim: Claim | None, wanted: Claim, name: str) -> None:
    if claim is not None and claim.source_id != wanted.source_id:
        raise JobError(
            f"topic {wanted.source!r} of the source was deleted and created again; {name!r} of the target has what "
            "it was before: copy to another name with --rename, or delete it at the target to begin anew"
        )
