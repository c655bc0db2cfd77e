"""Which of a log's oldest segments its settings no longer keep: a decision, no more."""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol, TypeVar

from penstock.model.configs import TopicConfig

_T = TypeVar("_T")


class Aging(Protocol):
    """What the decision asks of a segment, and of the older ones first."""

    next_offset: int

    @property
    def size_bytes(self) -> int: ...

    def newest_ms(self) -> int:
        """The largest timestamp in it, or when it was last written if there is none."""


def count_expired(
    segments: Sequence[Aging],
    config: TopicConfig,
    *,
    start_offset: int,
    upto_offset: int,
    now_ms: int,
) -> int:
    """How many of the first segments may go, none of which reaches `upto_offset`.

    All of them means that the last one, which grows, is past its time too.
    """
    below_start = _count(segments[:-1], lambda segment: segment.next_offset <= start_offset)
    if "delete" not in config.cleanup_policy:
        return below_start
    free = _count(segments, lambda segment: 0 < segment.next_offset <= upto_offset)
    if segments[-1].size_bytes == 0:
        free = min(free, len(segments) - 1)
    return max(
        below_start, min(free, max(_by_age(segments, config, now_ms), _by_size(segments, config)))
    )


def _by_age(segments: Sequence[Aging], config: TopicConfig, now_ms: int) -> int:
    if config.retention_ms < 0:
        return 0
    return _count(segments, lambda segment: now_ms - segment.newest_ms() > config.retention_ms)


def _by_size(segments: Sequence[Aging], config: TopicConfig) -> int:
    """As many as can go with `retention.bytes` still left."""
    if config.retention_bytes < 0:
        return 0
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        excess_bytes -= segment.size_bytes
        if excess_bytes < 0:
            break
        count += 1
    return count


def _count(items: Iterable[_T], condition: Callable[[_T], bool]) -> int:
    """How many hold it before the first that does not."""
    return sum(1 for _ in takewhile(condition, items))
