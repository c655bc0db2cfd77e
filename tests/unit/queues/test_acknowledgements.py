"""Acknowledgement batches become settlements; acquired records are split for the client."""

import pytest

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.acknowledgements import parse_acknowledgements, split_deliveries
from penstock.queues.record_states import AckType, Delivery
from penstock.queues.window_results import Settlement
from penstock.wire.messages.share_acknowledge import AcknowledgementBatch
from penstock.wire.messages.share_fetch import AcknowledgementBatch as FetchedBatch


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


def parse(*batches: AcknowledgementBatch, renew: bool = False) -> list[tuple[int, int, AckType]]:
    return list(parse_acknowledgements(batches, is_renew_allowed=renew))


def test_one_type_is_for_all_offsets_of_a_batch() -> None:
    assert parse(batch(3, 7, 1), batch(9, 9, 0)) == [(3, 8, AckType.ACCEPT), (9, 10, AckType.GAP)]


def test_types_for_each_offset_are_joined_to_ranges() -> None:
    assert parse(batch(3, 9, 1, 1, 2, 0, 0, 0, 3)) == [
        (3, 5, AckType.ACCEPT),
        (5, 6, AckType.RELEASE),
        (6, 9, AckType.GAP),
        (9, 10, AckType.REJECT),
    ]


def test_a_renewal_is_allowed_only_in_its_own_kind_of_request() -> None:
    assert parse(batch(3, 3, 4), renew=True) == [(3, 4, AckType.RENEW)]
    with pytest.raises(BrokerError, match="IsRenewAck"):
        parse(batch(3, 3, 4))


def test_batches_of_a_fetch_are_the_same() -> None:
    fetched = FetchedBatch(first_offset=1, last_offset=2, acknowledge_types=[2])
    found = parse_acknowledgements([fetched], is_renew_allowed=False)
    assert found == [Settlement(1, 3, AckType.RELEASE)]


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([batch(-1, 3, 1)], "batch of offsets -1 to 3"),
        ([batch(5, 4, 1)], "batch of offsets 5 to 4"),
        ([batch(0, 4, 1), batch(4, 5, 1)], "offsets 4 to 5 after offset 5"),
        ([batch(7, 8, 1), batch(4, 5, 1)], "must be sorted"),
        ([batch(0, 4)], "0 acknowledge types for 5 offsets"),
        ([batch(0, 4, 1, 1)], "2 acknowledge types for 5 offsets"),
        ([batch(0, 2**63 - 1, 1, 1)], "2 acknowledge types for 9223372036854775808"),
        ([batch(0, 1, 1, 5)], "unknown acknowledge type 5"),
        ([batch(0, 1, -1)], "unknown acknowledge type -1"),
    ],
)
def test_batches_without_sense_are_rejected(batches: list[AcknowledgementBatch], text: str) -> None:
    with pytest.raises(BrokerError, match=text) as caught:
        parse(*batches)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_acquired_records_are_split_at_record_batches() -> None:
    deliveries = [Delivery(0, 30, 1, 0), Delivery(30, 34, 2, 0), Delivery(50, 60, 1, 0)]
    parts = split_deliveries(deliveries, 10, [4, 9, 14, 20, 25, 30, 34, 51, 55, 60])
    assert [(p.first, p.end) for p in parts] == [(0, 14), (14, 25), (25, 30), (30, 34), (50, 60)]
    assert [p.acquired_count for p in parts] == [1, 1, 1, 2, 1]


def test_acquired_records_without_known_batches_are_not_split() -> None:
    assert split_deliveries([Delivery(0, 30, 1, 0)], 5, []) == [Delivery(0, 30, 1, 0)]
