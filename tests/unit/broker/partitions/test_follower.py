"""Followers: which leader each partition is fetched from."""

from types import SimpleNamespace
from typing import Any

from penstock.broker.partitions.follower import Followers
from penstock.metadata.image import PartitionImage
from tests.support.engine import Engine


def test_a_change_of_leaders_while_the_node_stops_begins_no_fetcher(engine: Engine) -> None:
    """Its tasks are over by then, so that to begin one is an error."""
    begun: list[str] = []

    def spawn(coroutine: Any, name: str) -> None:
        coroutine.close()
        begun.append(name)

    followers = Followers(SimpleNamespace(broker_id=1), spawn, SimpleNamespace())  # type: ignore[arg-type] # as much of them as it needs
    (partition,) = engine.topic("t", partitions=1)
    partition.follow(PartitionImage(2, 9, 9, (2, 1), (2, 1)))
    assert partition.leader_id == 2
    followers.stop()

    async def follow() -> None:
        followers.follow(partition)

    engine.run(follow())
    assert begun == []
