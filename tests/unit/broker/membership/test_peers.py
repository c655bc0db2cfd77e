"""Connections to other brokers: shared by lane, opened anew, given up when a broker is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from penstock.broker.membership.peers import Peers
from penstock.broker.membership.view import View
from penstock.client.errors import ClientError, ConnectionRefused
from penstock.metadata.image import BrokerInfo, ClusterImage, Delta, Endpoint
from penstock.metadata.store import NO_REVISION
from penstock.model.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.fake_broker import HANG_UP, SILENCE, FakeBroker

PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs out of time here but what is told to."""
    monkeypatch.setattr("penstock.broker.membership.peers._OPEN_TIMEOUT_MS", PATIENCE_MS)
    monkeypatch.setattr("penstock.broker.membership.peers._FIRST_PAUSE_S", PATIENCE_MS / 1000)


class OneBroker:
    """A view in which there is one other broker, number 2."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.image = ClusterImage()
        self.at: Endpoint | None = endpoint
        self._listeners: list[Callable[[Delta], None]] = []

    def endpoint(self, broker_id: int) -> Endpoint | None:
        return self.at if broker_id == 2 else None

    def on_change(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.append(listener)

    def session(self, epoch: int) -> None:
        self.image.brokers[2] = BrokerInfo(2, epoch, {}, None, False, "d")
        for listener in self._listeners:
            listener(Delta(NO_REVISION, brokers=[2]))


def run(scenario: Callable[[FakeBroker, OneBroker, Peers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            broker.on(MetadataRequest, lambda _: MetadataResponse(cluster_id="c"))
            view = OneBroker(Endpoint(*broker.address))
            peers = Peers(cast("View", view), client_id="test")
            try:
                await scenario(broker, view, peers)
            finally:
                await peers.close()

    asyncio.run(main())


async def ask(peers: Peers, lane: str = "control", timeout_ms: int = PATIENCE_MS) -> str | None:
    answer = await peers.request(
        2, MetadataRequest(), MetadataResponse, timeout_ms=timeout_ms, lane=lane
    )
    return answer.cluster_id


def test_requests_of_a_lane_share_a_connection_and_lanes_do_not() -> None:
    async def scenario(broker: FakeBroker, _: OneBroker, peers: Peers) -> None:
        assert await asyncio.gather(*(ask(peers) for _ in range(5))) == ["c"] * 5
        assert broker.connections == 1
        await ask(peers, "other")
        assert broker.connections == 2
        own = await peers.connection(2, timeout_ms=PATIENCE_MS)
        assert broker.connections == 3
        await own.close()

    run(scenario)


def test_a_connection_that_was_lost_is_opened_anew() -> None:
    async def scenario(broker: FakeBroker, _: OneBroker, peers: Peers) -> None:
        await ask(peers)
        broker.on(MetadataRequest, lambda _: HANG_UP)
        with pytest.raises(ClientError):
            await ask(peers)
        broker.on(MetadataRequest, lambda _: MetadataResponse(cluster_id="again"))
        assert await ask(peers) == "again"

    run(scenario)


def test_a_broker_that_moved_is_found_where_it_is_now() -> None:
    async def scenario(broker: FakeBroker, view: OneBroker, peers: Peers) -> None:
        await ask(peers)
        async with FakeBroker() as elsewhere:
            elsewhere.on(MetadataRequest, lambda _: MetadataResponse(cluster_id="moved"))
            view.at = Endpoint(*elsewhere.address)
            assert await ask(peers) == "moved"
        assert broker.connections == 1

    run(scenario)


def test_a_refused_connection_is_told_and_not_tried_again_at_once() -> None:
    async def scenario(broker: FakeBroker, view: OneBroker, peers: Peers) -> None:
        async with FakeBroker() as gone:
            view.at = Endpoint(*gone.address)
        told: list[int] = []
        peers.on_refused(told.append)
        with pytest.raises(ConnectionRefused):
            await ask(peers)
        with pytest.raises(ClientError, match="connection refused"):
            await ask(peers)
        assert told == [2]
        view.at = Endpoint(*broker.address)
        assert await ask(peers) == "c"

    run(scenario)


def test_who_waits_for_a_broker_whose_session_ended_is_told_at_once() -> None:
    async def scenario(broker: FakeBroker, view: OneBroker, peers: Peers) -> None:
        view.image.brokers[2] = BrokerInfo(2, 5, {}, None, False, "d")
        asked = asyncio.Event()

        def silent(_: object) -> object:
            asked.set()
            return SILENCE

        broker.on(MetadataRequest, silent)

        async def wait() -> None:
            with pytest.raises(ClientError) as error:
                await ask(peers)
            assert error.value.outcome_unknown

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait())
            await asked.wait()
            view.session(5)
            await asyncio.sleep(0)
            assert not waiting.done()
            view.session(0)

    run(scenario)


def test_a_broker_that_does_not_run_is_refused_with_its_number() -> None:
    async def scenario(_: FakeBroker, view: OneBroker, peers: Peers) -> None:
        view.at = None
        with pytest.raises(ClientError, match="broker 2 is not running") as error:
            await ask(peers)
        assert error.value.code is ErrorCode.BROKER_NOT_AVAILABLE

    run(scenario)


def test_a_broker_that_answers_nothing_is_given_up() -> None:
    async def scenario(broker: FakeBroker, _: OneBroker, peers: Peers) -> None:
        broker.on(MetadataRequest, lambda _: SILENCE)
        with pytest.raises(ClientError) as error:
            await ask(peers, timeout_ms=20)
        assert error.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(scenario)
