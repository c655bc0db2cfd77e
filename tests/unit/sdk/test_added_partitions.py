"""'latest' skips nothing in a partition that was added while the consumer ran."""

from typing import Any
from unittest import mock

import pytest

from penstock import Consumer
from penstock.sdk import reading
from penstock.sdk.errors import PenstockError
from penstock.sdk.settings import Role, translate
from tests.unit.sdk.fake_cluster import TOPIC, Cluster, FakeClient, kafka_exception

OLD, ADDED = (TOPIC, 0), (TOPIC, 1)


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.cluster = Cluster(1)
        self.cluster.ends[OLD] = 3
        with mock.patch.object(reading, "connect", self._connect):
            self.consumer = Consumer(
                "b:1",
                TOPIC,
                group_protocol="consumer",
                auto_offset_reset="latest",
                **settings,
            )

    def _connect(self, _: object, properties: dict[str, Any]) -> FakeClient:
        self.client = FakeClient(self.cluster, properties)
        return self.client

    def add_partition(self, messages: int) -> None:
        self.cluster.places.append(ADDED)
        self.cluster.ends[ADDED] = messages


@pytest.mark.parametrize("settings", [{}, {"group_id": "g"}])
def test_an_added_partition_begins_with_its_first_message(settings: dict[str, Any]) -> None:
    scene = Scene(**settings)
    scene.client.give([OLD])
    scene.add_partition(2)
    scene.client.give([ADDED])
    assert scene.client.positions == {OLD: 3, ADDED: 0}


def test_a_committed_offset_goes_first() -> None:
    scene = Scene(group_id="g")
    scene.client.give([OLD])
    scene.add_partition(5)
    scene.cluster.committed[ADDED] = 4
    scene.client.give([ADDED])
    assert scene.client.positions[ADDED] == 4


def test_partitions_that_were_there_begin_at_their_end_whenever_they_come() -> None:
    scene = Scene(group_id="g")
    scene.add_partition(5)
    scene.client.give([OLD])
    scene.client.give([ADDED])
    assert scene.client.positions == {OLD: 3, ADDED: 5}


def test_a_begin_that_cannot_be_found_out_is_asked_for_again() -> None:
    scene = Scene(group_id="g")
    scene.client.give([OLD])
    scene.add_partition(2)
    scene.client.failures["committed"] = kafka_exception()
    scene.client.give([ADDED])
    scene.client.failures["committed"] = kafka_exception()
    with pytest.raises(PenstockError, match="committed offsets"):
        scene.consumer.poll(0)
    with pytest.raises(PenstockError, match="committed offsets"):  # of the callback
        scene.consumer.poll(0)
    message = scene.consumer.poll(0)
    assert message is not None
    assert (message.place, message.offset) == (ADDED, 0)


def test_javas_name_for_the_interval_is_understood() -> None:
    scene = Scene()
    assert scene.client.properties["topic.metadata.refresh.interval.ms"] == 15_000
    given = translate(Role.CONSUMER, {"metadata_max_age_ms": 2000})
    assert given == {"topic.metadata.refresh.interval.ms": 2000}
