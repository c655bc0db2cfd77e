"""Brokers of different versions in one cluster: who does not support a level that is in force stays outside."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.session import Identity
from penstock.metadata.rules.feature_levels import LevelChange, LevelsRefused, UnsupportedLevel
from penstock.metadata.store import Put
from penstock.metadata.values import encode, feature_key
from penstock.model.features import SUPPORTED, Levels, Ranges
from tests.unit.broker.brokers import SESSION_MS, Brokers, brokers, seen

OLD: Ranges = {**SUPPORTED, "transaction.version": Levels(0, 1)}
RAISED = [LevelChange("transaction.version", 2, 1)]


def run(path: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with brokers(path / "metadata.db") as started:
            await scenario(started)

    asyncio.run(main())


def level(cluster: Cluster) -> int:
    return cluster.level("transaction.version")


def test_a_cluster_keeps_the_level_of_its_first_broker_until_all_are_new_and_it_is_raised(
    tmp_path: Path,
) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1, features=OLD)
        second = await started.start(2)
        assert level(first) == level(second) == 1
        with pytest.raises(LevelsRefused, match="by broker 1, which has 0 to 1: upgrade"):
            await first.update_features(RAISED)
        await started.stop(1)
        await seen(second, lambda: second.is_controller)
        with pytest.raises(LevelsRefused, match="by broker 1"):
            await second.update_features(RAISED)
        first = await started.start(1)
        assert level(first) == 1, "until an operator says so"
        await second.update_features(RAISED, validate_only=True)
        await second.update_features(RAISED)
        await seen(first, lambda: level(first) == 2)

    run(tmp_path, scenario)


def test_a_broker_that_is_too_old_is_told_why_it_does_not_start(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        await started.start(1)
        with pytest.raises(UnsupportedLevel) as refused:
            await started.start(2, features=OLD)
        assert str(refused.value) == (
            "the cluster has transaction.version at level 2, and this broker supports 0 to 1:"
            " start it with a newer version of Penstock"
        )

    run(tmp_path, scenario)


def test_a_broker_that_is_too_old_is_told_so_even_if_it_can_read_nothing_else(
    tmp_path: Path,
) -> None:
    async def scenario(started: Brokers) -> None:
        await started.start(1)
        store = started.store()
        await store.commit([], [Put("cfg/broker/", b'{"v":2}')])
        await store.close()
        with pytest.raises(UnsupportedLevel):
            await started.start(2, features=OLD)

    run(tmp_path, scenario)


def test_a_level_that_is_raised_while_an_old_broker_joins_keeps_it_out(tmp_path: Path) -> None:
    """The controller has seen the level before it sees the broker."""

    async def scenario(started: Brokers) -> None:
        first = await started.start(1, features=OLD)
        identity = Identity(
            broker_id=2, directory_id="dir-2", session_timeout_ms=SESSION_MS, features=OLD
        )
        joining = await started.make(identity)
        await joining.load()
        store = started.store()
        await store.commit([], [Put(feature_key("transaction.version"), encode(level=2))])
        await store.close()
        await seen(first, lambda: level(first) == 2)
        with pytest.raises(UnsupportedLevel):
            await joining.join(started.running[2].served.listeners)

    run(tmp_path, scenario)


def test_an_old_broker_that_waits_to_be_admitted_gives_up_when_the_level_is_raised(
    tmp_path: Path,
) -> None:
    async def scenario(started: Brokers) -> None:
        await started.start(1, features=OLD, session_ms=60_000)
        await started.running[1].freeze()  # nobody is admitted
        joining = await started.make(
            Identity(broker_id=2, directory_id="d", session_timeout_ms=60_000, features=OLD)
        )
        await joining.load()

        async def raised_meanwhile() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(joining.join(started.running[2].served.listeners))
                await seen(joining, lambda: 2 in joining.image.live)
                store = started.store()
                await store.commit([], [Put(feature_key("transaction.version"), encode(level=2))])
                await store.close()

        with pytest.raises(ExceptionGroup) as refused:
            await raised_meanwhile()
        assert isinstance(refused.value.exceptions[0], UnsupportedLevel)

    run(tmp_path, scenario)
