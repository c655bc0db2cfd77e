"""The deliveries of a channel that wait for an acknowledgement, as runs of consecutive tags.

A run is one receiver's: consecutive delivery tags for consecutive positions in its queue. Consumers
acknowledge mostly in order, so a run shrinks at its front.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from penstock.amqp.backend import Receiver
from penstock.amqp.failures import precondition_failed

_first_tag = attrgetter("first_tag")


class Run(NamedTuple):
    first_tag: int
    end_tag: int  # one past the last
    receiver: Receiver
    first_position: int

    @property
    def size(self) -> int:
        return self.end_tag - self.first_tag

    @property
    def end_position(self) -> int:
        return self.first_position + self.end_tag - self.first_tag

    def part(self, first_tag: int, end_tag: int) -> Run:
        position = self.first_position + first_tag - self.first_tag
        return Run(first_tag, end_tag, self.receiver, position)


class Unacked:
    """Invariant: runs are in order of their tags and do not overlap; those before `_head` are gone."""

    __slots__ = ("_head", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._head = 0
        self.count = 0

    def add(self, tag: int, receiver: Receiver, position: int) -> None:
        """Add a delivery. Its tag must be higher than all before."""
        self.count += 1
        runs = self._runs
        if len(runs) > self._head:
            last = runs[-1]
            if last.receiver is receiver and last.end_tag == tag and last.end_position == position:
                runs[-1] = Run(last.first_tag, tag + 1, receiver, last.first_position)
                return
        runs.append(Run(tag, tag + 1, receiver, position))

    def take(self, first_tag: int, last_tag: int, *, multiple: bool = False) -> list[Run]:
        """Take out the tags from `first_tag` to `last_tag`, or with `multiple` all up to it.

        A `last_tag` of 0 with `multiple` means all. Unknown tags raise PRECONDITION_FAILED, and then
        nothing is taken out.
        """
        if multiple:
            if not last_tag:
                return self.take_all()
            if self._find(last_tag) is None:
                raise _unknown(last_tag)
            first_tag = self._runs[self._head].first_tag
        else:
            self._check_known(first_tag, last_tag)
        return self._cut(first_tag, last_tag + 1)

    def take_all(self) -> list[Run]:
        taken = self._runs[self._head :]
        self._runs = []
        self._head = self.count = 0
        return taken

    def take_receiver(self, receiver: Receiver) -> list[Run]:
        """Take out all deliveries of one receiver."""
        taken = [run for run in self._runs[self._head :] if run.receiver is receiver]
        self._runs = [run for run in self._runs[self._head :] if run.receiver is not receiver]
        self._head = 0
        self.count -= sum(run.size for run in taken)
        return taken

    def restore(self, runs: list[Run]) -> None:
        """Put back what was taken out."""
        self._runs = sorted(self._runs[self._head :] + runs, key=_first_tag)
        self._head = 0
        self.count += sum(run.size for run in runs)

    def _find(self, tag: int) -> int | None:
        """Return the index of the run that holds a tag."""
        at = bisect_right(self._runs, tag, self._head, key=_first_tag) - 1
        return at if at >= self._head and tag < self._runs[at].end_tag else None

    def _check_known(self, first_tag: int, last_tag: int) -> None:
        tag = first_tag
        while tag <= last_tag:
            at = self._find(tag)
            if at is None:
                raise _unknown(tag)
            tag = self._runs[at].end_tag

    def _cut(self, first_tag: int, end_tag: int) -> list[Run]:
        """Take out what lies between two tags. What is left of the runs at both ends stays."""
        low = self._find(first_tag)
        high = self._find(end_tag - 1)
        assert low is not None
        assert high is not None
        taken = self._runs[low : high + 1]
        before, after = taken[0], taken[-1]
        left = []
        if before.first_tag < first_tag:
            left.append(before.part(before.first_tag, first_tag))
            taken[0] = before.part(first_tag, before.end_tag)
        if end_tag < after.end_tag:
            left.append(after.part(end_tag, after.end_tag))
            taken[-1] = taken[-1].part(taken[-1].first_tag, end_tag)
        self._replace(low, high + 1, left)
        self.count -= sum(run.size for run in taken)
        return taken

    def _replace(self, low: int, end: int, left: list[Run]) -> None:
        if low == self._head and len(left) <= 1:  # the front: move the head, copy nothing
            if left:
                self._runs[end - 1] = left[0]
                end -= 1
            self._head = end
            if self._head > 64 and self._head * 2 > len(self._runs):
                del self._runs[: self._head]
                self._head = 0
        else:
            self._runs[low:end] = left


def _unknown(tag: int) -> Exception:
    return precondition_failed(f"unknown delivery tag {tag}")
