"""Acknowledgement batches of ShareFetch and ShareAcknowledge requests, and acquired records of their responses."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, Protocol

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.record_states import AckType, Delivery
from penstock.queues.window_results import Settlement

_ON_THE_WIRE: Final = range(AckType.GAP, AckType.RENEW + 1)


class AckBatch(Protocol):
    """The fields that both requests have in common."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


def parse_acknowledgements(
    batches: Iterable[AckBatch], *, is_renew_allowed: bool
) -> list[Settlement]:
    """Return the settlements of a partition. A batch has one type for all offsets, or one for each."""
    settlements: list[Settlement] = []
    known_end = 0
    for batch in batches:
        first, end = batch.first_offset, batch.last_offset + 1
        if not known_end <= first < end:
            raise _invalid(
                f"batch of offsets {first} to {batch.last_offset} after offset {known_end}: "
                "batches must be sorted and must not overlap"
            )
        known_end = end
        types = batch.acknowledge_types
        _check_types(first, end, types, is_renew_allowed)
        if len(types) == 1:
            settlements.append(Settlement(first, end, AckType(types[0])))
        else:
            settlements += _runs(first, types)
    return settlements


def _check_types(first: int, end: int, types: Sequence[int], is_renew_allowed: bool) -> None:
    if len(types) not in (1, end - first):
        raise _invalid(
            f"{len(types)} acknowledge types for {end - first} offsets from {first}: "
            "one, or one for each offset, is required"
        )
    for ack_type in set(types):
        if ack_type not in _ON_THE_WIRE:
            raise _invalid(f"unknown acknowledge type {ack_type} for offsets from {first}")
        if ack_type == AckType.RENEW and not is_renew_allowed:
            raise _invalid("a renewal needs IsRenewAck, and share.renew.acknowledge.enable=true")


def _runs(first: int, types: Sequence[int]) -> Iterable[Settlement]:
    for ack_type, group in groupby(types):
        end = first + sum(1 for _ in group)
        yield Settlement(first, end, AckType(ack_type))
        first = end


def _invalid(text: str) -> BrokerError:
    return BrokerError(text, ErrorCode.INVALID_REQUEST)


def split_deliveries(
    deliveries: Iterable[Delivery], batch_size: int, batch_ends: Sequence[int]
) -> list[Delivery]:
    """Split sorted deliveries at ends of record batches, once a part has `batch_size` offsets or more.

    A client acknowledges what it acquired together: small parts give it more freedom (KIP-932).
    """
    parts: list[Delivery] = []
    place = 0
    for delivery in deliveries:
        first = delivery.first
        place = bisect_right(batch_ends, first, place)
        while place < len(batch_ends) and batch_ends[place] < delivery.end:
            end = batch_ends[place]
            if end - first >= batch_size:
                parts.append(delivery._replace(first=first, end=end))
                first = end
            place += 1
        parts.append(delivery._replace(first=first))
    return parts
