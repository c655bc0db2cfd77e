"""What a consumer group's members want, and the target that follows from it.

A changed subscription, or a change in the cluster that concerns one, opens a new group epoch; a new
epoch gets a new target assignment at once. Each step says what must be written down.
"""

from collections.abc import Callable

from penstock.groups import entries
from penstock.groups.assignment import ASSIGNORS, Subscriber
from penstock.groups.consumer import ConsumerGroup, ConsumerMember
from penstock.groups.patterns import InvalidPattern, Pattern
from penstock.groups.records import Entry


def refresh(
    group: ConsumerGroup, now_ms: int, *, changed: bool, may_see: Callable[[str], bool]
) -> list[Entry]:
    """Bring the group's epoch and target up to date. Costs nothing when nothing has changed."""
    is_seen = group.topics_version == group.context.topics.version
    if is_seen and not changed and group.epoch == group.assignment_epoch:
        return []
    written = _match_patterns(group, may_see)
    changed = _look_at_topics(group, written) or changed
    if changed:
        group.bump(now_ms)
        written.append(entries.epoch(group))
    if group.epoch > group.assignment_epoch:
        written += retarget(group)
    return written


def member_gone(group: ConsumerGroup, now_ms: int) -> list[Entry]:
    """After a member was removed: the others learn of their larger share when they are next heard of."""
    written: list[Entry] = []
    used = {m.profile.pattern for m in group.members.values()}
    for text in sorted(group.matches.keys() - used):
        del group.matches[text]
        group.patterns.pop(text, None)
        written.append(entries.pattern(group, text))
    _look_at_topics(group, written)
    group.bump(now_ms)
    return [*written, entries.epoch(group)]


def recognise(group: ConsumerGroup) -> None:
    """After a replay: note if the cluster is still as the target was made for. Then nobody has to act."""
    topics = group.context.topics
    shapes = {name: shape for name in group.subscribed if (shape := topics.get(name)) is not None}
    matched = all(_matching(group, text) == found for text, found in group.matches.items())
    if shapes == group.shapes and matched:
        group.topics_version = topics.version


def _matching(group: ConsumerGroup, text: str) -> frozenset[str]:
    """What a pattern matches now; of one that another broker took and this one does not, what it last matched."""
    pattern = group.patterns.get(text)
    if pattern is None:
        try:
            pattern = group.patterns[text] = Pattern(text)
        except InvalidPattern:
            return group.matches.get(text, frozenset())
    return group.context.topics.matching(pattern)


def _match_patterns(group: ConsumerGroup, may_see: Callable[[str], bool]) -> list[Entry]:
    """What the patterns of members match now."""
    written = []
    used = {m.profile.pattern for m in group.members.values()} - {None}
    for text in sorted(used | group.matches.keys(), key=str):
        assert text is not None
        if text not in used:
            del group.matches[text]
            group.patterns.pop(text, None)
        else:
            found = frozenset(filter(may_see, _matching(group, text)))
            if group.matches.get(text) == found:
                continue
            group.matches[text] = found
        written.append(entries.pattern(group, text))
    return written


def _look_at_topics(group: ConsumerGroup, written: list[Entry]) -> bool:
    """Whether what members subscribe to looks different from what the target was made for."""
    topics = group.context.topics
    group.topics_version = topics.version
    shapes = {name: shape for name in group.subscribed if (shape := topics.get(name)) is not None}
    if shapes == group.shapes:
        return False
    group.shapes = shapes
    written.append(entries.topic_shapes(group))
    return True


def retarget(group: ConsumerGroup) -> list[Entry]:
    """Compute the target of the group's epoch; only what changed for a member is written."""
    ids: dict[str, bytes] = {name: shape.id for name, shape in group.shapes.items()}
    counts: dict[bytes, int] = {shape.id: shape.partition_count for shape in group.shapes.values()}
    members = {
        member.id: Subscriber(member.profile.instance_id, _topic_ids(group, member, ids))
        for member in group.members.values()
    }
    assign = ASSIGNORS[group.preferred_assignor()]
    target = assign(members, counts, group.target)
    changed = [m for m, wanted in target.items() if group.target.get(m) != wanted]
    group.target = target
    group.assignment_epoch = group.epoch
    return [*(entries.target(group, m) for m in sorted(changed)), entries.assignment_epoch(group)]


def _topic_ids(
    group: ConsumerGroup, member: ConsumerMember, ids: dict[str, bytes]
) -> frozenset[bytes]:
    return frozenset(ids[name] for name in group.topics_of(member.profile) if name in ids)
