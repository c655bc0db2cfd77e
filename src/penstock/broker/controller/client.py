"""Requests to the controller; a broker that is the controller handles its own."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.controller.auto_topics import creation_request, refusal
from penstock.broker.controller.commands import DEFAULT_TIMEOUT_MS, Commands
from penstock.broker.controller.committer import Committer
from penstock.broker.controller.isr_requests import answer, asked_changes
from penstock.broker.controller.link import ControllerLink
from penstock.broker.controller.lost_logs import answer as lost_logs_answer
from penstock.broker.controller.lost_logs import names_of, places_of
from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.peers import CONTROL, Peers
from penstock.broker.membership.session import Session
from penstock.metadata.image import TopicImage
from penstock.metadata.rules.controller import TopicSpec, automatic_topic
from penstock.metadata.store import Revision, StoreError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from penstock.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from penstock.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.schema import Message

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_TOPICS_LANE: Final = "topics"
_ISR_TIMEOUT_MS: Final = 5_000

T = TypeVar("T")
R = TypeVar("R", bound=Message)


class Spawn(Protocol):
    """Runs a coroutine beside everything else and keeps hold of it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]: ...


class ControllerClient(Commands):
    def __init__(
        self,
        feed: ImageFeed,
        committer: Committer,
        session: Session,
        spawn: Spawn,
        static: Mapping[str, str],
    ) -> None:
        super().__init__(feed, committer, session.identity.broker_id, static)
        self.peers: Final = Peers(self, client_id=f"penstock-broker-{self.broker_id}")
        self._session = session
        self._spawn = spawn
        self._link = ControllerLink(feed, self.peers, lambda: self.is_controller)
        self._next_look_s = 0.0
        self._producer_ids = iter(range(0))
        self._producer_ids_turn = asyncio.Lock()

    @property
    def is_controller(self) -> bool:
        return self._committer.is_active_controller

    @property
    def epoch(self) -> Revision:
        """Of this broker's session; 0 while it has none."""
        return self._session.epoch

    # what the controller does for this broker

    async def ask_controller(
        self, message: Message, response: type[R], *, timeout_ms: int, lane: str = CONTROL
    ) -> R | None:
        """The controller's answer; None once this broker is the controller itself."""
        return await self._link.ask(message, response, timeout_ms=timeout_ms, lane=lane)

    async def catch_up(self) -> None:
        """Returns when the image holds everything that was committed before this call."""
        await self._feed.catch_up()

    def look_again(self) -> None:
        """Somebody knows of a newer leader than we do (B6): is there one? Asked once at a time, and not often."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_look_s:
            self._next_look_s = loop.time() + _LOOK_S
            self._spawn(self._look(), "look-again")

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                await self.catch_up()
        except (StoreError, TimeoutError) as error:
            _log.info("not-looked-again error=%s", error)

    async def auto_create_topic(self, name: str) -> TopicImage:
        """The topic, which somebody else may have created meanwhile."""
        spec = automatic_topic(self.image, name, self.rules)
        failure = await self._have_created(spec)
        topic = self.image.topics.get(name)
        if topic is not None:
            return topic
        raise failure or BrokerError(
            f"topic '{name}' was deleted at once", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    async def _have_created(self, spec: TopicSpec) -> BrokerError | None:
        answered = await self.ask_controller(
            creation_request(spec, DEFAULT_TIMEOUT_MS),
            CreateTopicsResponse,
            timeout_ms=DEFAULT_TIMEOUT_MS,
            lane=_TOPICS_LANE,
        )
        if answered is None:
            (outcome,) = await self.create_topics([spec])
            return outcome if isinstance(outcome, BrokerError) else None
        await self._guarded(self.catch_up(), DEFAULT_TIMEOUT_MS)
        return refusal(answered)

    async def next_producer_id(self) -> int:
        """One that no producer of this cluster has had."""
        async with self._producer_ids_turn:
            found = next(self._producer_ids, None)
            if found is None:
                self._producer_ids = iter(await self._new_producer_ids())
                found = next(self._producer_ids)
            return found

    async def _new_producer_ids(self) -> range:
        request = AllocateProducerIdsRequest(broker_id=self.broker_id, broker_epoch=self.epoch)
        answered = await self.ask_controller(
            request, AllocateProducerIdsResponse, timeout_ms=DEFAULT_TIMEOUT_MS
        )
        if answered is None:
            return await self.allocate_producer_ids()
        if answered.error_code != ErrorCode.NONE:
            raise BrokerError(
                f"the controller gave no producer ids (error {answered.error_code}); ask again",
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )
        first = answered.producer_id_start
        return range(first, first + answered.producer_id_len)

    async def alter_partition(
        self, request: AlterPartitionRequest, *, timeout_ms: int = _ISR_TIMEOUT_MS
    ) -> AlterPartitionResponse:
        """Asks the controller for changes of ISRs; raises when it does not answer in time."""
        answered = await self.ask_controller(request, AlterPartitionResponse, timeout_ms=timeout_ms)
        return await self.decide_isrs(request) if answered is None else answered

    async def report_lost_logs(
        self, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        """Tells the controller of logs of this broker that are damaged, or that others had better lead."""
        answered = await self.ask_controller(
            request, AssignReplicasToDirsResponse, timeout_ms=_ISR_TIMEOUT_MS
        )
        return await self.decide_lost_logs(request) if answered is None else answered

    # what this broker does for others as the controller

    async def decide_lost_logs(
        self, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        places = places_of(request)
        names = names_of(places, self.image)
        failed = {name: places[place] for place, name in names.items()}
        errors = await self.fail_replicas(request.broker_id, request.broker_epoch, failed)
        return lost_logs_answer(request, {place: errors[name] for place, name in names.items()})

    async def decide_isrs(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        changes = asked_changes(request)
        outcomes = await self.change_isrs(request.broker_id, request.broker_epoch, changes)
        return answer(request.broker_id, changes, outcomes)
