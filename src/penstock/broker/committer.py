"""Puts the controller's decisions into the store: fenced, one at a time, each on the state that it was decided on.

A decision whose ground has shifted is made again; one whose outcome is unknown is looked up first.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from penstock.broker.image_feed import ImageFeed
from penstock.metadata.decisions import Decision
from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Committed,
    Compare,
    Conflict,
    DeletePrefix,
    MetadataStore,
    Put,
    Write,
)
from penstock.metadata.values import CONTROLLER
from penstock.model.errors import BrokerError, ErrorCode

_log = logging.getLogger(__name__)

MAX_OPS: Final = 120  # etcd allows 128 compares or writes in a commit
MAX_BYTES: Final = 1_000_000  # and 1.5 MiB
_ATTEMPTS: Final = 5

T = TypeVar("T")


class Committer:
    def __init__(self, store: MetadataStore, feed: ImageFeed) -> None:
        self.controller_epoch = NO_REVISION  # of our own office; none: we are not the controller
        self._store = store
        self._feed = feed
        self._turn = asyncio.Lock()
        self._trouble = ""  # what the store last said of a commit that may not have happened

    async def commit(self, decide: Callable[[], Decision[T]]) -> T:
        """The result of a decision that has been committed and is in the image."""
        (decision,) = await self.commit_all(lambda: [decide()])
        return decision.result

    async def commit_all(
        self, decide: Callable[[], Sequence[Decision[T]]]
    ) -> Sequence[Decision[T]]:
        """Decisions that build on each other, in order; when one fails, all that is left is decided anew."""
        self._trouble = ""
        for _ in range(_ATTEMPTS):
            async with self._turn:
                self._check_office()
                decisions = decide()
                if all(await self._put_all(decisions, in_order=True)):
                    return decisions
        reason = self._trouble or "the metadata kept changing under this request"
        raise BrokerError(reason, ErrorCode.REQUEST_TIMED_OUT)

    async def commit_each(
        self, count: int, decide: Callable[[Sequence[int]], Sequence[Decision[T] | BrokerError]]
    ) -> list[T | BrokerError]:
        """Many decisions that do not hang together, with few commits. `decide` gets the numbers to decide on."""
        outcomes: list[T | BrokerError] = []
        async with self._turn:
            self._check_office()
            decided = decide(range(count))
            done = await self._put_all([it for it in decided if isinstance(it, Decision)])
        answers = iter(done)
        for number, decision in enumerate(decided):
            if isinstance(decision, BrokerError):
                outcomes.append(decision)
            elif next(answers):
                outcomes.append(decision.result)
            else:
                alone = await self._alone(number, decide)
                outcomes.append(alone)
        return outcomes

    async def _alone(
        self, number: int, decide: Callable[[Sequence[int]], Sequence[Decision[T] | BrokerError]]
    ) -> T | BrokerError:
        def decide_one() -> Decision[T]:
            (outcome,) = decide([number])
            if isinstance(outcome, BrokerError):
                raise outcome
            return outcome

        try:
            return await self.commit(decide_one)
        except BrokerError as error:
            return error

    def _check_office(self) -> None:
        image = self._feed.image
        if self.controller_epoch == NO_REVISION or image.controller_epoch != self.controller_epoch:
            raise BrokerError(
                f"this broker is not the controller; broker {image.controller_id} is",
                ErrorCode.NOT_CONTROLLER,
            )

    async def _put_all(
        self, decisions: Sequence[Decision[T]], *, in_order: bool = False
    ) -> list[bool]:
        """Which decisions were committed. Returns when the image holds them all."""
        done: list[bool] = []
        revision = NO_REVISION
        for batch in _batches(decisions):
            outcome = await self._put(batch)
            revision = max(revision, outcome.revision)
            done += [isinstance(outcome, Committed)] * len(batch)
            if in_order and isinstance(outcome, Conflict):
                break
        await self._feed.applied(revision)
        return done

    async def _put(self, batch: Sequence[Decision[T]]) -> Committed | Conflict:
        """One batch; a single decision that is too large goes in pieces, the visible one last."""
        outcome: Committed | Conflict = Committed(self._feed.image.revision)
        for compares, writes in _pieces(batch):
            outcome = await self._transact(compares, writes)
            if isinstance(outcome, Conflict):
                return outcome
        return outcome

    async def _transact(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        if not writes:
            return Committed(self._feed.image.revision)
        fence = Compare(CONTROLLER, create_revision=self.controller_epoch)
        try:
            return await self._store.commit([fence, *compares], writes)
        except Ambiguous as error:
            _log.warning("metadata-commit-ambiguous error=%s", error)
            self._trouble = str(error)
            return await self._settle(writes[-1])

    async def _settle(self, write: Write) -> Committed | Conflict:
        """Whether a commit has happened, told by its last write.

        While the office is ours nobody else writes, and we have one commit in flight: what we find is
        ours, or was there before.
        """
        office = await self._store.read(CONTROLLER)
        if office is None or office.create_revision != self.controller_epoch:
            raise BrokerError(
                "this broker lost the controller's office while it wrote", ErrorCode.NOT_CONTROLLER
            )
        revision = (await self._store.snapshot(CONTROLLER)).revision
        if isinstance(write, DeletePrefix):
            happened = not (await self._store.snapshot(write.prefix)).entries
        else:
            entry = await self._store.read(write.key)
            wanted = write.value if isinstance(write, Put) else None
            happened = (entry and entry.value) == wanted
        return Committed(revision) if happened else Conflict(revision)


def _batches(decisions: Iterable[Decision[T]]) -> Iterator[list[Decision[T]]]:
    """As many decisions as one commit can hold."""
    batch: list[Decision[T]] = []
    ops = size_bytes = 0
    for decision in decisions:
        more_ops = max(len(decision.writes), len(decision.compares))
        more_bytes = sum(map(_size, decision.writes))
        if batch and (ops + more_ops > MAX_OPS or size_bytes + more_bytes > MAX_BYTES):
            yield batch
            batch, ops, size_bytes = [], 0, 0
        batch.append(decision)
        ops += more_ops
        size_bytes += more_bytes
    if batch:
        yield batch


def _pieces(batch: Sequence[Decision[T]]) -> Iterator[tuple[list[Compare], list[Write]]]:
    """The commits that a batch takes: one, unless it is a single decision that exceeds the limits."""
    compares = [compare for decision in batch for compare in decision.compares]
    writes = [write for decision in batch for write in decision.writes]
    while len(writes) > 1 and (len(writes) > MAX_OPS or sum(map(_size, writes)) > MAX_BYTES):
        taken = _as_many_as_fit(writes)
        keys = {write.key for write in taken if isinstance(write, Put)}
        yield [compare for compare in compares if compare.key in keys], taken
        writes = writes[len(taken) :]
        compares = [compare for compare in compares if compare.key not in keys]
    yield compares, writes


def _as_many_as_fit(writes: Sequence[Write]) -> list[Write]:
    """At least one, and never the last: it makes the others visible."""
    taken: list[Write] = []
    size_bytes = 0
    for write in writes[: min(MAX_OPS, len(writes) - 1)]:
        size_bytes += _size(write)
        if taken and size_bytes > MAX_BYTES:
            break
        taken.append(write)
    return taken


def _size(write: Write) -> int:
    return len(write.key) + len(write.value) if isinstance(write, Put) else 100
