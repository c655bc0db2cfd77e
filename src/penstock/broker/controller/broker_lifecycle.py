"""The controller's handling of brokers: registration, unfencing, failover, controlled shutdown.

Everything is decided from the image, so a new controller continues where the last one stopped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from penstock.broker.controller.committer import Committer
from penstock.broker.controller.upkeep import Upkeep
from penstock.broker.membership.leader_reachability import LeaderReachability
from penstock.broker.membership.view import View
from penstock.metadata.image import BrokerInfo, ClusterImage, Delta
from penstock.metadata.rules.controller import remove_orphans
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.registration import (
    begin_shutdown,
    broker_lost,
    brokers_to_register,
    disk_failed,
    lost_brokers,
    register_broker,
    unfence_broker,
)
from penstock.metadata.store import Revision
from penstock.metadata.values import registration_key
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)

_log = logging.getLogger(__name__)

_CLOCK_SLACK_S: Final = 0.01  # timers may be a little early


class Report(NamedTuple):
    """What a broker last said of itself."""

    epoch: int
    applied: int  # the revision of its image
    heard_s: float  # when it said so, by the clock of the loop
    caught_up_s: float | None  # when it last had all that the controller had


class Standing(NamedTuple):
    """What the controller answers to it."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class BrokerLifecycle:
    """`wake` brings about the next `attend`. Only the membership that holds the office calls it."""

    def __init__(
        self,
        view: View,
        committer: Committer,
        upkeep: Upkeep,
        wake: Callable[[], None],
        *,
        patience_ms: int,
    ) -> None:
        self._view = view
        self._committer = committer
        self._upkeep = upkeep
        self._wake = wake
        self._patience_s: Final = patience_ms / 1000  # for brokers that start as we do (C4)
        self._reports: dict[int, Report] = {}
        self._leaving: dict[int, int] = {}  # the session that a broker wishes to end
        self._failed: dict[int, int] = {}  # the session in which a broker's disk failed
        self._handed_over: dict[int, Revision] = {}  # when it led nothing any more
        self._seen_to_start: set[int] = set()
        # These sessions may be left over, or of a cluster that ran before us.
        self._sessions_before_us: dict[int, int] = {}
        self._waits_until_s = 0.0
        self.reachability: Final = LeaderReachability(view, committer.commit_fast, wake)
        view.on_change(self._notice)

    async def begin(self, *, is_cold: bool) -> None:
        """The office is ours. At a cold start the others are given time to come back (C4)."""
        self._reports.clear()
        self._leaving.clear()
        self._failed.clear()
        self._handed_over.clear()
        self.reachability.begin()
        loop = asyncio.get_running_loop()
        self._sessions_before_us = {}
        if is_cold:
            others = [it for it in self._image.usable_brokers() if it.id != self._view.broker_id]
            self._sessions_before_us = {it.id: it.epoch for it in others}
            if self._image.topics:
                self._upkeep.balance_soon()
            self._waits_until_s = loop.time() + self._patience_s
            loop.call_later(self._patience_s + _CLOCK_SLACK_S, self._wake)
        await self._committer.commit_all(lambda: remove_orphans(self._image))

    async def attend(self) -> None:
        """What cannot be done for one broker is no reason to leave the others waiting."""
        failures = [await self._done(it, self._register) for it in brokers_to_register(self._image)]
        lost = [it for it in lost_brokers(self._image) if not self._is_waited_for(it)]
        failures += [await self._done(it, self._replace) for it in lost]
        failures += [await self._done(it, self._unfence) for it in self._to_unfence()]
        failures += [await self._done(it, self._let_go) for it in list(self._leaving)]
        for failure in failures:
            if failure is not None:
                raise failure
        await self.reachability.attend()
        await self._upkeep.attend()

    async def _done(
        self, broker_id: int, work: Callable[[int], Awaitable[None]]
    ) -> BrokerError | None:
        try:
            await work(broker_id)
        except BrokerError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise
            return error
        return None

    @property
    def _image(self) -> ClusterImage:
        return self._view.image

    # what brokers report

    def receive(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Note a broker's heartbeat, with the leaders that it cannot fetch from."""
        standing = self.heartbeat(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            wants_to_leave=request.want_shut_down,
            has_failed=request.want_fence,
        )
        self.reachability.heard(
            request.broker_id, request.broker_epoch, request.unreachable_leaders
        )
        return BrokerHeartbeatResponse(
            is_caught_up=standing.is_caught_up,
            is_fenced=standing.is_fenced,
            should_shut_down=standing.should_shut_down,
        )

    def heartbeat(
        self,
        broker_id: int,
        epoch: int,
        applied: int,
        *,
        wants_to_leave: bool,
        has_failed: bool = False,
    ) -> Standing:
        """C6: how far a broker is, and whether it may take part or leave. Says nothing of its life.

        Who leaves may do so at once, or may have to stay because its disk is broken: it leads no more.
        """
        broker = self._registered(broker_id, epoch)
        self._note(broker_id, epoch, applied)
        if self._sessions_before_us.get(broker_id) == epoch:
            self._end_patience()
        if has_failed and self._failed.get(broker_id) != epoch:
            self._failed[broker_id] = epoch
            self._handed_over.pop(broker_id, None)  # as one that was sound
        if (wants_to_leave or has_failed) and broker_id not in self._handed_over:
            self._leaving[broker_id] = epoch
            self._wake()
        elif broker.fenced and self._is_caught_up(broker_id):
            self._wake()
        return Standing(
            self._is_caught_up(broker_id),
            broker.fenced,
            wants_to_leave and self._may_leave(broker_id),
        )

    def _note(self, broker_id: int, epoch: int, applied: int) -> None:
        now_s = asyncio.get_running_loop().time()
        before = self.last_report(broker_id)
        caught_up_s = before.caught_up_s if before is not None else None
        if applied >= self._image.revision:
            caught_up_s = now_s
        self._reports[broker_id] = Report(epoch, applied, now_s, caught_up_s)

    def last_report(self, broker_id: int) -> Report | None:
        """What another broker last reported to this controller in its present session."""
        report, broker = self._reports.get(broker_id), self._image.brokers.get(broker_id)
        if report is None or broker is None or report.epoch != broker.epoch:
            return None
        return report

    def applied(self, broker_id: int) -> int:
        """The revision that a running broker is known to have taken in."""
        if broker_id == self._view.broker_id:
            return self._image.revision
        report = self.last_report(broker_id)
        return 0 if report is None else report.applied

    def _registered(self, broker_id: int, epoch: int) -> BrokerInfo:
        if not self._committer.is_active_controller:
            raise BrokerError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker_id not in self._image.registrations:
            raise BrokerError(
                f"broker {broker_id} is not registered yet", ErrorCode.BROKER_ID_NOT_REGISTERED
            )
        if broker.epoch != epoch:
            raise BrokerError(
                f"broker {broker_id} has epoch {broker.epoch}, not {epoch}",
                ErrorCode.STALE_BROKER_EPOCH,
            )
        return broker

    def _is_caught_up(self, broker_id: int) -> bool:
        registered_at = self._image.key_revisions.get(registration_key(broker_id), 0)
        return self.applied(broker_id) >= registered_at

    # coming

    async def _register(self, broker_id: int) -> None:
        self._leaving.pop(broker_id, None)
        self._handed_over.pop(broker_id, None)

        def decide() -> list[Decision[None]]:
            return register_broker(
                self._image, broker_id, self._view.rules, is_cold_start=self._is_cold_start
            )

        if await self._committer.commit_all(decide):
            _log.info("broker-registered broker=%d", broker_id)
        elif broker_id in brokers_to_register(self._image):
            _log.error("broker-refused broker=%d reason=%s", broker_id, "feature-unsupported")

    def _to_unfence(self) -> list[int]:
        """Of those that are registered: some may have come while others were."""
        image, unregistered = self._image, brokers_to_register(self._image)
        return [
            broker.id
            for broker in image.brokers.values()
            if broker.fenced
            and broker.id in image.live
            and broker.id not in unregistered
            and not broker.in_controlled_shutdown
            and self._failed.get(broker.id) != broker.epoch
            and self._is_caught_up(broker.id)
        ]

    async def _unfence(self, broker_id: int) -> None:
        def decide() -> list[Decision[None]]:
            return unfence_broker(self._image, broker_id, self._view.rules)

        if await self._committer.commit_fast(decide):
            _log.info("broker-admitted broker=%d", broker_id)

    # going

    @property
    def _is_cold_start(self) -> bool:
        return asyncio.get_running_loop().time() < self._waits_until_s

    def _is_waited_for(self, broker_id: int) -> bool:
        """At a cold start, unless it came and went since."""
        return self._is_cold_start and broker_id not in self._seen_to_start

    def _end_patience(self) -> None:
        """Somebody took part before us and still does: the cluster was running, and who is absent is lost."""
        self._sessions_before_us = {}
        self._waits_until_s = 0.0
        self._wake()

    async def _replace(self, broker_id: int) -> None:
        def decide() -> Sequence[Decision[None]]:
            return broker_lost(self._image, broker_id, self._view.rules)

        leaves = self._image.registrations[broker_id].in_controlled_shutdown
        done = await self._committer.commit_fast(decide)
        self._reports.pop(broker_id, None)
        level = logging.INFO if leaves else logging.WARNING
        _log.log(
            level, "broker-gone broker=%d announced=%s chunks=%d", broker_id, leaves, len(done) - 1
        )

    async def _let_go(self, broker_id: int) -> None:
        """O1, L4: others lead what it led; it is told to go once they all know."""
        broker = self._image.brokers.get(broker_id)
        epoch = self._leaving.pop(broker_id)
        if broker is None or broker.epoch != epoch:
            return
        has_failed = self._failed.get(broker_id) == epoch
        go = disk_failed if has_failed else begin_shutdown

        def decide() -> Sequence[Decision[None]]:
            return go(self._image, broker_id, self._view.rules)

        if broker_id not in self._handed_over:
            reason = "disk-failed" if has_failed else "stop"
            _log.info("broker-leaving broker=%d reason=%s", broker_id, reason)
        while decide():  # once more: until the registration said so, leaders could take it back
            await self._committer.commit_fast(decide)
            self._handed_over.pop(broker_id, None)
        self._handed_over.setdefault(broker_id, self._image.revision)

    def _may_leave(self, broker_id: int) -> bool:
        moved_at = self._handed_over.get(broker_id)
        others = [it.id for it in self._image.usable_brokers() if it.id != broker_id]
        return moved_at is not None and all(self.applied(other) >= moved_at for other in others)

    def _notice(self, delta: Delta) -> None:
        """Who was seen alive since our own session began is not waited for: it came, or was the controller."""
        image, me = self._image, self._view.broker_id
        own = image.brokers.get(me)
        if own is None or own.epoch <= 0:
            return
        for broker_id in delta.brokers:
            other = image.brokers.get(broker_id)
            if other is not None and own.epoch < other.epoch:
                self._seen_to_start.add(broker_id)
        known, controller_id = image.registrations.get(me), image.controller_id
        has_acted = known is not None and known.epoch == own.epoch
        if controller_id not in (None, me) and (has_acted or own.epoch < image.controller_epoch):
            assert controller_id is not None
            self._seen_to_start.add(controller_id)
