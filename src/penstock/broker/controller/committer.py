"""Puts the controller's decisions into the store: fenced, each on the state that it was decided on.

A decision whose ground has shifted is made again; one whose outcome is unknown is looked up first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.broker.controller.batching import Limits
from penstock.broker.membership.image_feed import ImageFeed
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Committed,
    CommitTooLarge,
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

_ATTEMPTS: Final = 5
_IN_FLIGHT: Final = 3  # commits of one great change

T = TypeVar("T")


class Committer:
    def __init__(self, store: MetadataStore, feed: ImageFeed) -> None:
        self.controller_epoch = NO_REVISION  # of our own office; none: we are not the controller
        self._store = store
        self._feed = feed
        self._limits = Limits()
        self._turn = asyncio.Lock()
        self._office = NO_REVISION  # in which the decisions of this turn were made
        self._trouble = ""  # what the store last said of a commit that may not have happened

    @property
    def is_active_controller(self) -> bool:
        mine = self.controller_epoch
        return mine != NO_REVISION and self._feed.image.controller_epoch == mine

    async def commit(self, decide: Callable[[], Decision[T]]) -> T:
        """The result of a decision that has been committed and is in the image."""
        (decision,) = await self.commit_all(lambda: [decide()])
        return decision.result

    async def commit_all(
        self, decide: Callable[[], Sequence[Decision[T]]]
    ) -> Sequence[Decision[T]]:
        """Decisions that build on each other, in order; when one fails, all that is left is decided anew."""
        return await self._commit_all(decide, self._put_in_order)

    async def commit_fast(
        self, decide: Callable[[], Sequence[Decision[T]]]
    ) -> Sequence[Decision[T]]:
        """Many decisions that do not hang together but are all needed (C5): several commits at once.

        The last one tells that all others were committed, and comes after them.
        """
        return await self._commit_all(decide, self._put_at_once)

    async def _commit_all(
        self,
        decide: Callable[[], Sequence[Decision[T]]],
        put: Callable[[Sequence[Decision[T]]], Awaitable[bool]],
    ) -> Sequence[Decision[T]]:
        self._trouble = ""
        for _ in range(_ATTEMPTS):
            async with self._turn:
                self._check_office()
                decisions = decide()
                if await put(decisions):
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
        """What is decided from here on counts only while this office lasts, also if we lose it, or get another, before
        it is written."""
        self._office = self.controller_epoch
        if not self.is_active_controller:
            raise BrokerError(
                f"this broker is not the controller; broker {self._feed.image.controller_id} is",
                ErrorCode.NOT_CONTROLLER,
            )

    async def _put_all(self, decisions: Sequence[Decision[T]]) -> list[bool]:
        """Which decisions were committed. Returns when the image holds them all."""
        done: list[bool] = []
        revision = NO_REVISION
        for batch in self._limits.batches(decisions):
            outcome = await self._put(batch)
            revision = max(revision, outcome.revision)
            done += [isinstance(outcome, Committed)] * len(batch)
        await self._feed.applied(revision)
        return done

    async def _put_in_order(self, decisions: Sequence[Decision[T]]) -> bool:
        """Whether all were committed; what follows one that was not is not tried."""
        outcome: Committed | Conflict = Committed(NO_REVISION)
        for batch in self._limits.batches(decisions):
            outcome = await self._put(batch)
            if isinstance(outcome, Conflict):
                break
        await self._feed.applied(outcome.revision)
        return isinstance(outcome, Committed)

    async def _put_at_once(self, decisions: Sequence[Decision[T]]) -> bool:
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def put(batch: Sequence[Decision[T]]) -> Committed | Conflict:
            async with gate:
                return await self._put(batch)

        puts = [put(batch) for batch in self._limits.batches(decisions[:-1])]
        results = await asyncio.gather(*puts, return_exceptions=True)  # none is left on its own
        outcomes = [result for result in results if not isinstance(result, BaseException)]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not any(isinstance(outcome, Conflict) for outcome in outcomes):
            outcomes += [await self._put(decisions[-1:])]
        await self._feed.applied(max(outcome.revision for outcome in outcomes))
        return not any(isinstance(outcome, Conflict) for outcome in outcomes)

    async def _put(self, batch: Sequence[Decision[T]]) -> Committed | Conflict:
        """One batch; a single decision that is too large goes in pieces, the visible one last."""
        outcome: Committed | Conflict = Committed(self._feed.image.revision)
        for compares, writes in self._limits.pieces(batch):
            outcome = await self._transact(compares, writes)
            if isinstance(outcome, Conflict):
                return outcome
        return outcome

    async def _transact(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        if not writes:
            return Committed(self._feed.image.revision)
        fence = Compare(CONTROLLER, create_revision=self._office)
        try:
            return await self._store.commit([fence, *compares], writes)
        except CommitTooLarge as error:
            if not self._limits.halve():
                raise
            self._trouble = str(error)
            return Conflict(self._feed.image.revision)  # decided anew, and put in smaller pieces
        except Ambiguous as error:
            _log.warning("metadata-commit-ambiguous error=%s", error)
            self._trouble = str(error)
            return await self._settle(writes[-1])

    async def _settle(self, write: Write) -> Committed | Conflict:
        """Whether a commit has happened, told by its last write.

        While the office is ours nobody else writes, and we have one commit of each key in flight: what
        we find is ours, or was there before.
        """
        office = await self._store.read(CONTROLLER)
        if office is None or office.create_revision != self._office:
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
