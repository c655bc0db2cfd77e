"""Markers for partitions that other brokers lead: those for one broker go together, whatever transaction they end."""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.broker.controller.cluster import Spawn
from penstock.broker.coordinators.batching_sender import BatchingSender
from penstock.broker.coordinators.markers import Ending
from penstock.broker.membership.peers import Peers
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import EPOCH_PER_TRANSACTION, group_by_topic
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_log = logging.getLogger(__name__)

_LANE: Final = "markers"
_TIMEOUT_MS: Final = 30_000  # who writes markers answers earlier, with what is not committed yet
Told = Callable[[TopicPartition, ErrorCode], None]


class PendingMarker(NamedTuple):
    """A marker for one partition; `told` hears what became of it, once."""

    name: TopicPartition
    ending: Ending
    is_wanted: Callable[[], bool]
    told: Told


class RemoteMarkers:
    """Sends each marker once: who wants it written for sure asks again, where the leader is by then."""

    def __init__(self, peers: Peers, spawn: Spawn) -> None:
        self._peers = peers
        self._sender: BatchingSender[PendingMarker] = BatchingSender(
            spawn, "markers", self._deliver
        )

    def send(self, broker_id: int, pending: PendingMarker) -> None:
        self._sender.send(broker_id, pending)

    async def _deliver(self, broker_id: int, markers: list[PendingMarker]) -> None:
        wanted = [pending for pending in markers if pending.is_wanted()]
        if not wanted:
            return
        codes: dict[tuple[Ending, TopicPartition], ErrorCode] = {}
        by_ending = _by_ending(wanted)
        try:
            answer = await self._peers.request(
                broker_id,
                WriteTxnMarkersRequest(markers=[_marker(*it) for it in by_ending.items()]),
                WriteTxnMarkersResponse,
                timeout_ms=_TIMEOUT_MS,
                lane=_LANE,
            )
            codes = _codes(answer, by_ending)
        except BrokerError as error:
            _log.info("markers-not-sent broker=%d count=%d error=%s", broker_id, len(wanted), error)
        except Exception:  # noqa: BLE001 - a bug, and no reason to wait for ever
            _log.exception("markers-failed broker=%d", broker_id)
        for pending in wanted:
            pending.told(
                pending.name, codes.get((pending.ending, pending.name), ErrorCode.NETWORK_EXCEPTION)
            )


def _by_ending(markers: Iterable[PendingMarker]) -> dict[Ending, list[TopicPartition]]:
    found: dict[Ending, list[TopicPartition]] = {}
    for pending in markers:
        found.setdefault(pending.ending, []).append(pending.name)
    return found


def _marker(ending: Ending, names: list[TopicPartition]) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=ending.producer.id,
        producer_epoch=ending.producer.epoch,
        transaction_result=ending.committed,
        coordinator_epoch=ending.coordinator_epoch,
        transaction_version=EPOCH_PER_TRANSACTION if ending.ends_epoch else 0,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in group_by_topic(names).items()
        ],
    )


def _codes(
    answer: WriteTxnMarkersResponse, asked: Iterable[Ending]
) -> dict[tuple[Ending, TopicPartition], ErrorCode]:
    """Answers come in the order of the markers."""
    return {
        (ending, TopicPartition(topic.name, row.partition_index)): ErrorCode(row.error_code)
        for ending, result in zip(asked, answer.markers, strict=True)
        for topic in result.topics
        for row in topic.partitions
    }
