"""Checks of consumer groups: who is behind, who reads no more, and whose unread messages are about to be deleted."""

from collections.abc import Iterator
from typing import Final

from penstock.doctor.cluster_facts import Behind, ClusterFacts, GroupFacts
from penstock.doctor.findings import Check, Found, Severity, counted, listed
from penstock.doctor.units import duration

_LAGGING_MS: Final = 300_000
_LAGGING_MESSAGES: Final = 100_000  # where the age is unknown
_ABANDONED_MS: Final = 86_400_000
_HEADROOM_MS: Final = 86_400_000
_HEADROOM_SHARE: Final = 4  # a quarter of the retention, where that is shorter than a day


def _age_ms(group: GroupFacts, facts: ClusterFacts) -> int | None:
    since_ms = group.unread_since_ms
    return None if since_ms is None else max(0, facts.now_ms - since_ms)


def _described(group: GroupFacts, facts: ClusterFacts) -> str:
    age_ms = _age_ms(group, facts)
    old = "" if age_ms is None else f", {duration(age_ms)} old"
    return f"{group.name} ({counted(group.lag, 'message')}{old})"


def _is_abandoned(group: GroupFacts, facts: ClusterFacts) -> bool:
    age_ms = _age_ms(group, facts)
    return group.is_empty and group.lag > 0 and age_ms is not None and age_ms > _ABANDONED_MS


def _lagging(facts: ClusterFacts) -> Iterator[Found]:
    found = []
    for group in facts.groups:
        age_ms = _age_ms(group, facts)
        late = group.lag > _LAGGING_MESSAGES if age_ms is None else age_ms > _LAGGING_MS
        if not group.is_empty and group.lag and late:
            found.append(group)
    found.sort(key=lambda group: (-(_age_ms(group, facts) or 0), group.name))
    if found:
        yield Found(
            f"behind: {listed([_described(group, facts) for group in found])}",
            f"see: penstock group describe {found[0].name}; add members, up to one a partition",
            [group.name for group in found],
        )


def _abandoned(facts: ClusterFacts) -> Iterator[Found]:
    found = [group for group in facts.groups if _is_abandoned(group, facts)]
    if found:
        yield Found(
            f"without members, with unread messages: "
            f"{listed([_described(group, facts) for group in found])}",
            f"start its consumers, or: penstock group delete {found[0].name}",
            [group.name for group in found],
        )


def _empty(facts: ClusterFacts) -> Iterator[Found]:
    found = [
        group.name for group in facts.groups if group.is_empty and not _is_abandoned(group, facts)
    ]
    if found:
        yield Found(
            f"{counted(len(found), 'group')} without members: {listed(found)}",
            f"delete those that nobody needs: penstock group delete {found[0]}",
            found,
        )


def _idle(facts: ClusterFacts) -> Iterator[Found]:
    found = [group for group in facts.groups if group.idle_members]
    if found:
        rows = [f"{group.name} ({group.idle_members} of {group.members})" for group in found]
        yield Found(
            f"members without partitions: {listed(rows)}",
            "run fewer members, or add partitions: penstock topic alter NAME -p N",
            [group.name for group in found],
        )


def _is_deleted_with_age(row: Behind, facts: ClusterFacts) -> bool:
    return "delete" in facts.policies(row.partition.topic)


def _headroom_ms(row: Behind, facts: ClusterFacts) -> int | None:
    """The time until the first unread message is old enough to be deleted."""
    retention_ms = facts.number(row.partition.topic, "retention.ms")
    if row.unread_since_ms is None or not row.lag or not _is_deleted_with_age(row, facts):
        return None
    if retention_ms is None or retention_ms < 0:
        return None
    left_ms = retention_ms - (facts.now_ms - row.unread_since_ms)
    is_short = left_ms < min(_HEADROOM_MS, retention_ms // _HEADROOM_SHARE)
    return max(0, left_ms) if is_short else None


def _from_then(left_ms: int) -> str:
    return f"in {duration(left_ms)}" if left_ms else "at any moment"


def _deleted_soon(facts: ClusterFacts) -> Iterator[Found]:
    found: dict[str, tuple[int, Behind]] = {}
    for group in facts.groups:
        for row in group.behind:
            left_ms = _headroom_ms(row, facts)
            if left_ms is not None and left_ms <= found.get(group.name, (left_ms, row))[0]:
                found[group.name] = left_ms, row
    if found:
        ordered = sorted(found.items(), key=lambda item: item[1][0])
        rows = [f"{name} on {row.partition} ({_from_then(ms)})" for name, (ms, row) in ordered]
        topic = ordered[0][1][1].partition.topic
        yield Found(
            f"unread messages may be deleted: {listed(rows)}",
            f"penstock topic alter {topic} -c retention.ms=14d until the group has read them",
            [name for name, _ in ordered],
        )


def _deleted_unread(facts: ClusterFacts) -> Iterator[Found]:
    rows, names = [], []
    for group in facts.groups:
        lost = [row for row in group.behind if 0 <= row.committed < row.start]
        if lost:
            count = sum(row.start - row.committed for row in lost)
            rows.append(f"{group.name} ({counted(count, 'offset')}, {lost[0].partition} first)")
            names.append(group.name)
    if rows:
        yield Found(
            f"messages were deleted before they were read: {listed(rows)}",
            f"penstock group reset {names[0]} --to start, and a longer retention.ms",
            names,
        )


_P, _W, _N = Severity.PROBLEM, Severity.WARNING, Severity.NOTE

GROUP_CHECKS: Final[tuple[Check[ClusterFacts], ...]] = (
    Check("group-lag", _W, "a group with members has unread messages older than 5 minutes (100,000 where the age is unknown)", "Its consumers do not keep up.", _lagging),
    Check("group-abandoned", _W, "a group without members has unread messages older than a day", "Nobody reads for it; its offsets expire, and the messages too.", _abandoned),
    Check("group-empty", _N, "a group has no members", "It may have stopped, or nobody may need it any more.", _empty),
    Check("group-idle-members", _N, "a group has members without partitions", "They only wait for another to stop.", _idle),
    Check("retention-deletes-unread", _P, "retention deletes unread messages within a day, or within a quarter of it where that is shorter", "What is deleted unread is lost for the group.", _deleted_soon),
    Check("group-lost-messages", _W, "a group's committed offset is before the start of the log", "Messages were deleted before the group read them.", _deleted_unread),
)  # fmt: skip
