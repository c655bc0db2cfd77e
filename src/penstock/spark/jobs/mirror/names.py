"""Name mirrors and their sources, and decide which topics must not be copied.

A mirror's setting `penstock.mirror.source` names cluster, topic id and topic of its source. If the
source is a mirror itself, the source's own setting follows after ` < `. So no ring of links,
however long, copies records back to where they came from.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.spark.errors import JobError

LINK_LOG_PREFIX: Final = "__penstock_mirror."  # topics with the state of translated mirrors
_NEXT: Final = " < "
_PART: Final = ":"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KEPT_HERE: Final = frozenset(  # what each cluster decides for itself
    {
        "penstock.mirror.source",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
_MIN_INSYNC: Final = "min.insync.replicas"


class Origin(NamedTuple):
    """One topic of one cluster, and where that has it from."""

    cluster_id: str
    topic_id: str  # in hexadecimal: a topic that was created anew is another one
    topic: str
    before: str = ""  # the setting of the source, when that is a mirror itself

    def text(self) -> str:
        own = _PART.join(self[:3])
        return f"{own}{_NEXT}{self.before}" if self.before else own


def parse_origin(text: str) -> Origin | None:
    """None for what a mirror job did not write."""
    own, _, before = text.partition(_NEXT)
    parts = own.split(_PART)
    return Origin(parts[0], parts[1], parts[2], before) if len(parts) == 3 else None


def clusters(text: str) -> list[str]:
    """All that a mirror's records went through, the nearest first."""
    found = []
    for part in text.split(_NEXT):
        origin = parse_origin(part)
        found.append(part if origin is None else origin.cluster_id)
    return found


class Topic(NamedTuple):
    """As one cluster has it."""

    name: str
    topic_id: bytes
    partitions: int
    replicas: int
    settings: Mapping[str, str]  # those set for it
    mirrors: str  # penstock.mirror.source, or nothing


def renamed(pattern: str, source_name: str, topic: str) -> str:
    """`{source}.{topic}` filled in."""
    name = pattern.replace("{source}", source_name).replace("{topic}", topic)
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise JobError(f"--rename {pattern} makes {name!r} of {topic!r}, which is no topic's name")
    return name


def copied_settings(source: Topic, replicas: int) -> dict[str, str]:
    """What a mirror with so many replicas has; more in sync than there are would refuse every write."""
    found = {name: value for name, value in source.settings.items() if name not in _KEPT_HERE}
    if _MIN_INSYNC in found and int(found[_MIN_INSYNC]) > replicas:
        found[_MIN_INSYNC] = str(replicas)
    return found


class Skip(NamedTuple):
    """Not to be copied, and why."""

    reason: str
    is_problem: bool = False


class Create(NamedTuple):
    partitions: int


class Replace(NamedTuple):
    """Deleted, and created as a mirror."""

    partitions: int


class Adjust(NamedTuple):
    """It is there; what differs."""

    grow_to: int | None
    set_to: Mapping[str, str]
    reset: tuple[str, ...]


Decision = Skip | Create | Replace | Adjust


def decide(
    source: Topic, target: Topic | None, *, name: str, origin: Origin, target_id: str, replace: bool
) -> Decision:
    """What the target needs, to have a mirror of `source` called `name`. JobError: it cannot have one."""
    if source.mirrors and target_id in clusters(source.mirrors):
        return Skip(f"{source.name!r} comes from the target cluster: it is not copied back")
    if target is None:
        return Create(source.partitions)
    if not target.mirrors:
        if replace:
            return Replace(source.partitions)
        raise JobError(
            f"topic {name!r} of the target is no mirror: it was promoted, or is its own; copy to another "
            "name with --rename, or, to give it up for the source's, use: penstock pipeline mirror failback"
        )
    _check_origin(target.mirrors, origin, name)
    if target.partitions > source.partitions:
        raise JobError(
            f"mirror {name!r} has {target.partitions} partitions and its source {source.partitions}: "
            "it is no copy; delete it at the target to begin anew"
        )
    wanted = copied_settings(source, target.replicas)
    has = copied_settings(target, target.replicas)
    return Adjust(
        source.partitions if source.partitions > target.partitions else None,
        {key: value for key, value in wanted.items() if has.get(key) != value},
        tuple(sorted(has.keys() - wanted.keys())),
    )


def _check_origin(mirrors: str, origin: Origin, name: str) -> None:
    found = parse_origin(mirrors)
    if found is None or found.cluster_id != origin.cluster_id or found.topic != origin.topic:
        raise JobError(
            f"topic {name!r} of the target mirrors another one ({mirrors}); copy to another name with --rename"
        )
    if found.topic_id != origin.topic_id:
        raise JobError(
            f"topic {origin.topic!r} of the source was deleted and created again; mirror {name!r} has what "
            "it was before: promote it to keep that, or delete it at the target to begin anew"
        )
