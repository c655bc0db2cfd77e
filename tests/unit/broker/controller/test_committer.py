"""What the controller has decided is written in the office in which it was decided, or not at all."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.controller.committer import Committer
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.sqlite.store import SqliteStore
from penstock.metadata.store import NO_REVISION, Committed, Delete, Put, Revision
from penstock.metadata.values import CONTROLLER
from penstock.model.errors import BrokerError, ErrorCode
from tests.support.clocks import ManualClock

_COUNT = 999  # more than one commit takes


class Feed:
    """An image that knows only who holds the office."""

    def __init__(self) -> None:
        self.image: Any = SimpleNamespace(controller_epoch=0, controller_id=None, revision=0)

    async def applied(self, revision: Revision) -> None:
        assert revision >= 0


async def elected(store: SqliteStore, committer: Committer, feed: Feed) -> None:
    outcome = await store.commit([], [Put(CONTROLLER, b"us")])
    assert isinstance(outcome, Committed)
    committer.controller_epoch = feed.image.controller_epoch = outcome.revision


@pytest.mark.parametrize("returns", [False, True], ids=["lost", "lost, and ours again"])
def test_an_office_that_ends_before_a_decision_is_written_takes_the_decision_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    async def run() -> None:
        store, feed = SqliteStore(tmp_path / "metadata.sqlite", ManualClock()), Feed()
        committer = Committer(store, feed)  # type: ignore[arg-type] # as much of a feed as it uses
        await elected(store, committer, feed)
        commit, commits, rounds = store.commit, 0, 0

        def decide() -> list[Decision[int]]:
            nonlocal rounds
            rounds += 1
            return [Decision(n, [Put(f"{n:03}", b"%d" % rounds)]) for n in range(_COUNT)]

        async def lose_office_after_one(compares: Any, writes: Any) -> Any:
            nonlocal commits
            outcome = await commit(compares, writes)
            commits += 1
            if commits == 1:
                await commit([], [Delete(CONTROLLER)])
                committer.controller_epoch = feed.image.controller_epoch = NO_REVISION
                if returns:
                    await elected(store, committer, feed)
            return outcome

        monkeypatch.setattr(store, "commit", lose_office_after_one)
        if returns:
            await committer.commit_all(decide)
        else:
            with pytest.raises(BrokerError) as refused:
                await committer.commit_all(decide)
            assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert commits > 1, "there was more to write"
        last = await store.read(f"{_COUNT - 1:03}")
        assert (last and last.value, rounds) == ((b"2", 2) if returns else (None, 1))
        await store.close()

    asyncio.run(run())
