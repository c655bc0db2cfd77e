"""What a check is and what it reports: a stable id, a fact, the reason why it matters, and a remedy. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

SHOWN_SUBJECTS: Final = 5  # in a sentence
KEPT_SUBJECTS: Final = 100  # in JSON

F = TypeVar("F")


class Severity(StrEnum):
    """Most severe first."""

    PROBLEM = "problem"  # something fails or loses data, now or soon
    WARNING = "warning"  # something will fail when one more thing goes wrong
    NOTE = "note"  # good to know; never a failure


class Found(NamedTuple):
    """What a rule reads in the facts."""

    fact: str
    remedy: str
    subjects: Sequence[str] = ()  # all of them: topics, brokers, groups


@dataclass(frozen=True)
class Check(Generic[F]):
    """One row of the table of checks. `condition` says when the rule reports something."""

    id: str
    severity: Severity
    condition: str
    reason: str
    rule: Callable[[F], Iterable[Found]]


class Finding(NamedTuple):
    id: str
    severity: Severity
    scope: str
    fact: str
    reason: str
    remedy: str
    subjects: tuple[str, ...]  # the first KEPT_SUBJECTS
    subject_count: int


def examine(
    checks: Iterable[Check[F]], facts: F, scope: str, ignored: Collection[str] = ()
) -> list[Finding]:
    """Return what the checks find, the most severe first."""
    found = [
        Finding(
            check.id,
            check.severity,
            scope,
            row.fact,
            check.reason,
            row.remedy,
            tuple(row.subjects[:KEPT_SUBJECTS]),
            len(row.subjects),
        )
        for check in checks
        if check.id not in ignored
        for row in check.rule(facts)
    ]
    return by_severity(found)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def listed(subjects: Sequence[str], most: int = SHOWN_SUBJECTS) -> str:
    """`a, b and 312 more`."""
    shown = ", ".join(subjects[:most])
    hidden = len(subjects) - most
    return f"{shown} and {hidden:,} more" if hidden > 0 else shown


def counted(number: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
