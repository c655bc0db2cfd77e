"""A leader whose disk is full lets another lead, where enough others are in sync."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.controller.lost_logs import answer, places_of
from penstock.broker.maintenance import full_disk_handoff, housekeeping
from penstock.broker.partitions import fetcher
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import BrokerError, DiskFull, ErrorCode
from penstock.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from tests.support.several import Several, several_brokers

TOPIC = "t"


@pytest.fixture(scope="module")
def _brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """Whether there is room is for the test to say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full_disk_handoff, "_LOOK_S", 0.005)
        patch.setattr(housekeeping, "_DISK_S", 3600)
        patch.setattr(fetcher, "_LONGEST_RETRY_S", 0.05)
        with several_brokers(tmp_path_factory.mktemp("several")) as started:
            yield started


@pytest.fixture
def brokers(_brokers: Several) -> Iterator[Several]:
    """With a topic of three replicas, which broker 1 leads."""
    _brokers.create_topic(TOPIC, [[1, 2, 3]])
    _brokers.until(lambda: len(_brokers.partition(TOPIC).isr) == 3)
    yield _brokers
    for node in _brokers.nodes.values():
        _brokers.call(node.services.replicas.disk_has_room)
    _brokers.delete_topic(TOPIC)
    nodes = _brokers.nodes.values()
    _brokers.until(lambda: not any(TOPIC in it.services.replicas.topics for it in nodes))


def replicas(brokers: Several, number: int) -> ReplicaManager:
    return brokers.services(number).replicas


def fill(brokers: Several, number: int) -> None:
    brokers.call(lambda: replicas(brokers, number).disk_is_full(DiskFull("no room")))


def state(brokers: Several) -> Any:
    images = [node.services.cluster.image for node in brokers.nodes.values()]
    found = [image.topics[TOPIC].partitions[0] for image in images]
    return max(found, key=lambda it: it.partition_epoch)


def wait_a_little(brokers: Several) -> None:
    for _ in range(20):
        brokers.run(asyncio.sleep(0.002))


def test_another_leads_and_the_full_one_follows(brokers: Several) -> None:
    fill(brokers, 1)
    brokers.until(lambda: brokers.leader(TOPIC) == 2)
    brokers.until(lambda: brokers.partition(TOPIC, at=1).leader_id == 2)
    assert brokers.partition(TOPIC, at=1).failure is None, "nothing is wrong with what it has"


def test_it_is_not_taken_for_in_sync_before_it_has_room(brokers: Several) -> None:
    """It has all that is committed, but the next record would wait for it."""
    fill(brokers, 1)
    brokers.until(lambda: brokers.partition(TOPIC, at=1).leader_id == 2)
    for _ in range(10):
        wait_a_little(brokers)
    assert state(brokers).isr == (2, 3)
    brokers.call(replicas(brokers, 1).disk_has_room)
    brokers.until(lambda: set(state(brokers).isr) == {1, 2, 3})


def test_a_follower_that_is_full_changes_nobodys_lead(brokers: Several) -> None:
    epoch = state(brokers).leader_epoch
    fill(brokers, 2)
    wait_a_little(brokers)
    assert (brokers.leader(TOPIC), state(brokers).leader_epoch) == (1, epoch)


def test_where_all_are_full_the_lead_does_not_go_round_and_round(brokers: Several) -> None:
    epoch = state(brokers).leader_epoch
    for number in brokers.nodes:
        fill(brokers, number)
    brokers.until(lambda: state(brokers).leader_epoch > epoch)
    wait_a_little(brokers)
    wait_a_little(brokers)
    assert state(brokers).leader_epoch <= epoch + len(brokers.nodes)
    assert state(brokers).leader > 0


def test_it_stays_where_too_few_would_be_left(brokers: Several) -> None:
    cluster = brokers.services(1).cluster
    ops = [ConfigOp("min.insync.replicas", Op.SET, "3")]
    brokers.run(cluster.alter_configs(Resource.TOPIC, TOPIC, ops))
    brokers.until(lambda: brokers.partition(TOPIC).min_isr == 3)
    fill(brokers, 1)
    wait_a_little(brokers)
    assert brokers.leader(TOPIC) == 1


def test_a_lead_that_the_controller_did_not_let_go_is_offered_again_soon(
    brokers: Several, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller knows of an ISR that the broker has not heard of."""
    cluster = brokers.services(1).cluster
    report, logged = cluster.report_lost_logs, []

    async def rejected_once(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        logged.append("lead-yielded" in caplog.text)
        if len(logged) > 2:
            return await report(request)
        error = BrokerError("too few are in sync", ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return answer(request, dict.fromkeys(places_of(request), error))

    monkeypatch.setattr(cluster, "report_lost_logs", rejected_once)
    fill(brokers, 1)
    brokers.until(lambda: brokers.leader(TOPIC) == 2)
    brokers.until(lambda: "lead-yielded" in caplog.text)
    assert logged[:3] == [False] * 3
