"""A metadata file with brokers on it, each a cluster as one broker sees it, and a store that can be made to fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.session import Identity
from penstock.metadata.image import TopicImage
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.sqlite.store import SqliteStore
from penstock.metadata.store import (
    Ambiguous,
    Changes,
    Committed,
    Compare,
    Conflict,
    Reload,
    Revision,
    Write,
)
from penstock.model.errors import BrokerError, ErrorCode
from penstock.node.tasks import Tasks
from tests.support.clocks import ManualClock
from tests.unit.broker.serving import serving

SESSION_MS = 20_000  # nobody waits for its end, and machines are busy
Static = dict[str, str]


class TroubledStore(SqliteStore):
    """Does what a test says before or instead of a commit; otherwise a store like any other."""

    trouble: Callable[[Sequence[Write]], Awaitable[None]] | None = None
    fails_after_commit = False
    reloads = 0
    commits = 0

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        self.commits += 1
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            await trouble(writes)
        outcome = await super().commit(compares, writes)
        if self.fails_after_commit:
            self.fails_after_commit = False
            raise Ambiguous("the answer was lost")
        return outcome

    async def watch(self, prefix: str, after: Revision) -> AsyncIterator[Changes | Reload]:
        if self.reloads:
            self.reloads -= 1
            yield Reload()
        async for found in super().watch(prefix, after):
            yield found
            if self.reloads:
                return


class Place:
    """A metadata file, and brokers that are started on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()

    def store(self) -> TroubledStore:
        return TroubledStore(self.path, self.clock, boot_id="boot", poll_ms=1)

    @asynccontextmanager
    async def broker(
        self,
        broker_id: int = 1,
        *,
        static: Static | None = None,
        directory_id: str | None = None,
        store: SqliteStore | None = None,
        session_ms: int = SESSION_MS,
    ) -> AsyncIterator[Cluster]:
        tasks = Tasks()
        identity = Identity(
            broker_id=broker_id,
            directory_id=directory_id or f"dir-{broker_id}",
            session_timeout_ms=session_ms,
        )
        cluster = Cluster(store or self.store(), identity, tasks.spawn, static)
        async with serving(cluster) as listeners:
            try:
                await cluster.load()
                await cluster.join(listeners)
                yield cluster
            finally:
                await cluster.stop()
                await tasks.close()


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        await scenario

    asyncio.run(main())


async def create(cluster: Cluster, *names: str, partitions: int = 1) -> list[TopicImage]:
    outcomes = await cluster.create_topics([TopicSpec(name, partitions) for name in names])
    for outcome in outcomes:
        if isinstance(outcome, BrokerError):
            raise outcome
    return [cluster.image.topics[name] for name in names]


async def code_of(work: Awaitable[object]) -> ErrorCode:
    try:
        await work
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE
