"""Followers: which leader each partition is fetched from."""

from typing import Any, cast
from unittest import mock

from penstock.broker.follower import Followers


def test_metadata_that_arrives_while_the_broker_stops_begins_no_fetcher() -> None:
    """Its tasks are over by then, so that to begin one is an error."""
    started: list[str] = []
    cluster: Any = mock.Mock(broker_id=1)
    followers = Followers(cluster, cast(Any, lambda _, name: started.append(name)), mock.Mock())
    partition: Any = mock.Mock(leader_id=2, failure=None)

    followers.stop()
    followers.follow(partition)

    assert not started
