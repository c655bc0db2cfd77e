"""Members of the consumer protocol (KIP-848): the coordinator assigns, and heartbeats carry all that changes."""

from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.simulation.checks.groups import Place
from tests.simulation.clients.group_client import BUSY, Identity
from tests.simulation.clients.group_member import STALE, Ended, Group, Member, Removed
from tests.simulation.loop import Broken, SimLoop

LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2
_FAR_AHEAD: Final = 1000

Owned = frozenset[tuple[bytes, int]]


class ConsumerMember(Member):
    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        group: Group,
        instance_id: str | None,
    ) -> None:
        super().__init__(loop, brokers, name, group, instance_id)
        rng = loop.world.rng
        self.commit_version = rng.choice((9, 10))
        self.fetch_version = rng.choice((9, 10))
        self.member_id = name
        self._epoch = 0
        self._epochs: list[int] = []  # that it was given, since it joined
        self._says_all = True  # the next heartbeat carries everything
        self._is_unsure = False  # a request has no response; the coordinator may be ahead
        self._target: Owned | None = None
        self._told: Owned | None = None  # what the coordinator was told to be owned
        self._heartbeat_s = 0.0

    @property
    def identity(self) -> Identity:
        return Identity(self._epoch, self.member_id, self.instance_id)

    @property
    def fetch_identity(self) -> Identity:
        return Identity(self._epoch, self.member_id)

    @property
    def _owned(self) -> Owned:
        return frozenset((self.ids[place], place[1]) for place in self.owned)

    async def live(self) -> None:
        while True:
            try:
                await self.meet_fate()
                if self.loop.time() >= self._heartbeat_s or self._owned != self._told:
                    await self._beat()
                if await self._reconcile():
                    continue
                await self.work()
            except Removed as removed:
                self._give_up(removed.code)
            except BrokerError:
                await self.pause()

    def _give_up(self, code: ErrorCode) -> None:
        """Nothing is the member's any more; it joins again under its id."""
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            return
        self.release(list(self.owned))
        self._epoch, self._epochs, self._target, self._told = 0, [], None, None
        self._says_all, self._is_unsure = True, False
        self._heartbeat_s = 0.0

    # Heartbeats --------------------------------------------------------------------------------

    def _heartbeat(self, epoch: int, *, says_all: bool) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        owned = self._owned
        if says_all:
            request.rebalance_timeout_ms = self.group.rebalance_ms
            request.subscribed_topic_names = [self.group.topic, self.group.volatile]
        if says_all or owned != self._told:
            request.topic_partitions = _by_topic(owned)
        return request

    async def _beat(self) -> None:
        rng, start_s = self.loop.world.rng, self.loop.time()
        if len(self._epochs) > 2 and rng.random() < STALE:
            await self._beat_late()
        owned = self._owned
        request = self._heartbeat(self._epoch, says_all=self._says_all or self._epoch == 0)
        try:
            response = await self.ask(self.group.name, request, ConsumerGroupHeartbeatResponse)
        except BrokerError:
            self._says_all = self._is_unsure = True
            raise
        code = self.note_code(self.group.name, response.error_code)
        if code:
            self._failed(code)
            return
        self._says_all = self._is_unsure = False
        self._told = owned
        self._heartbeat_s = self.loop.time() + response.heartbeat_interval_ms / 1000
        self._epoch = response.member_epoch
        if not self._epochs or self._epochs[-1] != self._epoch:
            self._epochs.append(self._epoch)
        if response.assignment is not None:
            self._target = frozenset(
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
        self._was_heard(start_s)

    def _was_heard(self, start_s: float) -> None:
        """While it has something to give up, the session is not all that counts."""
        target = self._target or frozenset()
        kept = [place for place in self.owned if (self.ids[place], place[1]) in target]
        heard_s = self.heard_s
        self.was_kept(kept, start_s)
        if len(kept) < len(self.owned):
            self.heard_s = heard_s

    def _failed(self, code: ErrorCode) -> None:
        self._says_all = True
        if code in BUSY:
            raise BrokerError(code.name, code)
        if code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            raise Ended
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            if self._epoch > 0:
                fenced = code is ErrorCode.FENCED_MEMBER_EPOCH
                if not (fenced and self._is_unsure):
                    self.was_rejected(is_fenced=fenced)
            raise Removed(code)
        raise Broken(f"{self.name} received {code.name}")

    async def _beat_late(self) -> None:
        """A heartbeat of an epoch that is over, or has not come yet."""
        epochs = (self._epochs[-3], self._epoch + _FAR_AHEAD)
        epoch = self.loop.world.rng.choice(epochs)
        request = self._heartbeat(epoch, says_all=True)
        response = await self.ask(self.group.name, request, ConsumerGroupHeartbeatResponse)
        if not response.error_code:
            detail = f"{self.name}: heartbeat of epoch {epoch} in {self._epoch}"
            self.history.accepted_late.append(detail)

    async def leave(self) -> None:
        if self._epoch <= 0:
            return
        self.release(list(self.owned))
        epoch = LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE
        request = self._heartbeat(epoch, says_all=False)
        request.topic_partitions = None
        await self.ask(self.group.name, request, ConsumerGroupHeartbeatResponse)

    # Assignments -------------------------------------------------------------------------------

    async def _reconcile(self) -> bool:
        """Give up what is no longer the member's; take what is new. True if something changed."""
        target, owned = self._target, self._owned
        if target is None or target == owned:
            return False
        gone = [it for it in self.owned if (self.ids[it], it[1]) not in target]
        if gone:
            try:
                await self.commit_handled(gone)
            except BrokerError:
                pass
            self.release([it for it in gone if it in self.owned])
        self.claim({self._place(*it): it[0] for it in sorted(target - owned)})
        return True

    def _place(self, topic_id: bytes, index: int) -> Place:
        if self.topic_ids.get(self.group.topic) == topic_id:
            return self.group.topic, index
        return f"{self.group.volatile}@{topic_id.hex()}", index


def _by_topic(owned: Owned) -> list[TopicPartitions]:
    topics: dict[bytes, TopicPartitions] = {}
    for topic_id, index in sorted(owned):
        topic = topics.setdefault(topic_id, TopicPartitions(topic_id=topic_id, partitions=[]))
        topic.partitions.append(index)
    return list(topics.values())
