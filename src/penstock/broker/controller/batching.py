"""How many decisions go into one commit: as many as the store takes, learned from what it refuses."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from penstock.metadata.rules.decisions import Decision
from penstock.metadata.store import Compare, Put, Write

MAX_OPS: Final = 120  # etcd allows 128 compares or writes in a commit
MAX_BYTES: Final = 1_000_000  # and 1.5 MiB

T = TypeVar("T")


class Limits:
    """Of one commit. They only ever shrink."""

    def __init__(self) -> None:
        self.ops = MAX_OPS
        self.size_bytes = MAX_BYTES

    def halve(self) -> bool:
        """After a refusal; False when nothing is left to halve."""
        if self.ops == 1:
            return False
        self.ops //= 2
        self.size_bytes //= 2
        return True

    def batches(self, decisions: Iterable[Decision[T]]) -> Iterator[list[Decision[T]]]:
        """As many decisions as one commit can hold."""
        batch: list[Decision[T]] = []
        ops = size_bytes = 0
        for decision in decisions:
            more_ops = max(len(decision.writes), len(decision.compares))
            more_bytes = sum(map(_size, decision.writes))
            if batch and (ops + more_ops > self.ops or size_bytes + more_bytes > self.size_bytes):
                yield batch
                batch, ops, size_bytes = [], 0, 0
            batch.append(decision)
            ops += more_ops
            size_bytes += more_bytes
        if batch:
            yield batch

    def pieces(self, batch: Sequence[Decision[T]]) -> Iterator[tuple[list[Compare], list[Write]]]:
        """The commits that a batch takes: one, unless it is a single decision that exceeds the limits."""
        compares = [compare for decision in batch for compare in decision.compares]
        writes = [write for decision in batch for write in decision.writes]
        while len(writes) > 1 and self._exceeded_by(writes):
            taken = self._as_many_as_fit(writes)
            keys = {write.key for write in taken if isinstance(write, Put)}
            yield [compare for compare in compares if compare.key in keys], taken
            writes = writes[len(taken) :]
            compares = [compare for compare in compares if compare.key not in keys]
        yield compares, writes

    def _exceeded_by(self, writes: Sequence[Write]) -> bool:
        return len(writes) > self.ops or sum(map(_size, writes)) > self.size_bytes

    def _as_many_as_fit(self, writes: Sequence[Write]) -> list[Write]:
        """At least one, and never the last: it makes the others visible."""
        taken: list[Write] = []
        size_bytes = 0
        for write in writes[: min(self.ops, len(writes) - 1)]:
            size_bytes += _size(write)
            if taken and size_bytes > self.size_bytes:
                break
            taken.append(write)
        return taken


def _size(write: Write) -> int:
    return len(write.key) + len(write.value) if isinstance(write, Put) else 100
