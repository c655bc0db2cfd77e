"""A broker that most of the others cannot reach is voted out; one that is slow, or out of reach of one of them, is not."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership import isolation_vote
from penstock.broker.membership.probe import Reach, probe
from penstock.broker.membership.view import inter_broker
from penstock.metadata.values import Endpoint, Vote
from penstock.model.errors import BrokerError
from tests.unit.broker.brokers import brokers, seen

SESSION_MS = 60_000  # a session that does not end by itself, nor by the controller's own doubts
PATIENCE_MS = 300


class Hosts:
    """Whom brokers hear of, and whose hosts take connections: in a test's hands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reach: dict[Endpoint, Reach] = {}
        self.probes = 0
        monkeypatch.setattr(isolation_vote, "probe", self._probe)

    async def _probe(self, address: Endpoint, _: float) -> Reach:
        self.probes += 1
        await asyncio.sleep(0)
        return self.reach.get(address, Reach.OPEN)

    def goes(self, cluster: Cluster, reach: Reach = Reach.SILENT) -> None:
        """What others find who try to connect to it."""
        address = inter_broker(cluster.image.live[cluster.broker_id].listeners, cluster.config)
        assert address is not None
        self.reach[address] = reach

    def silence(self, *clusters: Cluster) -> None:
        """Heartbeats that these send are not answered."""
        for cluster in clusters:
            heartbeats: Any = cluster._heartbeats
            heartbeats._sent = _unanswered

    def end_silence(self, cluster: Cluster) -> None:
        del cluster._heartbeats._sent


async def _unanswered(*_: Any) -> Any:
    await asyncio.sleep(0.01)
    raise BrokerError("no answer")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(isolation_vote, "_SILENT_TTLS", PATIENCE_MS / SESSION_MS)
    monkeypatch.setattr(isolation_vote, "_LOOK_TTLS", 20 / SESSION_MS)
    monkeypatch.setattr(isolation_vote, "_AGAIN_TTLS", 0)
    return Hosts(monkeypatch)


def run(path: Path, scenario: Callable[[list[Cluster]], Awaitable[None]], count: int = 3) -> None:
    """Broker 1 is the controller."""

    async def main() -> None:
        async with brokers(path / "metadata.db") as started:
            clusters = [
                await started.start(number, session_ms=SESSION_MS) for number in range(1, count + 1)
            ]
            assert clusters[0].is_controller
            await scenario(clusters)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to be")


def voted(cluster: Cluster) -> set[tuple[int, int]]:
    """By suspect and voter, as that broker sees it."""
    return {it for it, vote in cluster.image.votes.items() if vote.is_cut_off}


def test_two_of_three_end_the_session_of_a_controller_that_they_cannot_reach(
    tmp_path: Path, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        first, second, third = clusters
        epoch = first.epoch
        hosts.goes(first)
        hosts.silence(second, third)
        await seen(second, lambda: second.image.controller_id in (2, 3))
        await seen(first, lambda: first.epoch not in (0, epoch))
        await until(lambda: not second.image.votes)

    run(tmp_path, scenario)
    assert "broker-voted-out broker=1 voters=2,3" in caplog.text


def test_whom_the_controller_doubts_the_others_look_at_too(
    tmp_path: Path, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        first, second, third = clusters
        epoch = second.epoch
        hosts.goes(second)
        hosts.silence(second)
        await seen(first, lambda: first.image.brokers[2].epoch != epoch)
        assert first.is_controller
        await until(lambda: not third.image.votes)

    run(tmp_path, scenario)
    assert "broker-voted-out broker=2 voters=1,3" in caplog.text


def test_the_word_of_one_is_not_enough_and_is_taken_back(tmp_path: Path, hosts: Hosts) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        first, second, third = clusters
        epoch = first.epoch
        hosts.goes(first)
        hosts.silence(second)
        third._isolation_vote._suspects = dict  # type: ignore[method-assign] # it reaches everybody
        await until(lambda: voted(first) == {(1, 2)})
        looked = hosts.probes
        await until(lambda: hosts.probes > looked + 10)
        assert (first.epoch, first.is_controller) == (epoch, True)
        hosts.end_silence(second)
        hosts.goes(first, Reach.OPEN)
        await until(lambda: not first.image.votes)

    run(tmp_path, scenario)


def test_session_lost_during_a_write_ends_all_votes_and_not_the_voter(
    tmp_path: Path,
) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        voter: Any = clusters[1]._isolation_vote
        vote = Vote(clusters[0].epoch, is_cut_off=True)

        async def lose_session(_: Any) -> bool:
            clusters[1]._session._lose()
            return True

        voter._said[1] = vote
        voter._written = lose_session
        await voter._withdraw(1)
        await seen(clusters[1], lambda: clusters[1].epoch != 0)
        await voter._say(1, vote)
        assert voter._said == {}

    run(tmp_path, scenario)


@pytest.mark.parametrize("reach", [Reach.OPEN, Reach.REFUSED])
def test_one_whose_host_is_there_is_left_to_its_session(
    tmp_path: Path, hosts: Hosts, reach: Reach
) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        first, second, third = clusters
        epochs = [it.epoch for it in clusters]
        for cluster in clusters:
            hosts.goes(cluster, reach)
        hosts.silence(second, third)
        await until(lambda: hosts.probes > 10)
        assert [it.epoch for it in clusters] == epochs
        assert not voted(first)

    run(tmp_path, scenario)


def test_of_two_neither_can_vote_the_other_out(tmp_path: Path, hosts: Hosts) -> None:
    async def scenario(clusters: list[Cluster]) -> None:
        first, second = clusters
        epochs = first.epoch, second.epoch
        hosts.goes(first)
        hosts.goes(second)
        hosts.silence(second)
        await until(lambda: voted(first) == {(1, 2), (2, 1)})
        looked = hosts.probes
        await until(lambda: hosts.probes > looked + 20)
        assert (first.epoch, second.epoch) == epochs

    run(tmp_path, scenario, count=2)


def test_a_vote_against_an_earlier_session_counts_for_nothing(
    tmp_path: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks: not for the vote, and not because the machine stood still for a moment."""
    monkeypatch.setattr(isolation_vote, "_SILENT_TTLS", 1)

    async def scenario(clusters: list[Cluster]) -> None:
        first, second, _ = clusters
        stale = Vote(first.epoch - 1, is_cut_off=True)
        await second._isolation_vote._say(1, stale)
        await until(lambda: not second._isolation_vote._said)
        assert not hosts.probes

    run(tmp_path, scenario)


def test_a_probe_tells_who_listens_who_refuses_and_who_is_not_there() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:  # as of a process that hangs
            address = Endpoint(*listening.getsockname())
            assert await probe(address, 60) is Reach.OPEN
        assert await probe(address, 60) is Reach.REFUSED
        assert await probe(address, 0) is Reach.SILENT

    asyncio.run(scenario())
