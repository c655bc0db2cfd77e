"""What is finished never passes the message in hand, nor one that is here in part; pausing loses and doubles nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.large import PART_HEADER, split
from penstock.sdk.message import Message
from penstock.sdk.shelf import Shelf


class Raw:
    """Looks like librdkafka's message."""

    def __init__(
        self, partition: int, offset: int, value: bytes = b"", headers: Any = None
    ) -> None:
        self._at = (partition, offset)
        self._value = value
        self._headers = headers

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def value(self) -> bytes:
        return self._value

    def key(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def headers(self) -> Any:
        return self._headers

    def error(self) -> None:
        return None


def shelf_with(*fetched: Raw) -> Shelf:
    shelf = Shelf((None, None), lambda *_: None)
    shelf.put(fetched, note_origins=True)
    return shelf


def test_a_message_is_finished_when_the_next_is_asked_for() -> None:
    shelf = shelf_with(Raw(0, 5), Raw(0, 6))
    shelf.take()
    shelf.settle()
    assert shelf.finished == {}
    shelf.finish_in_hand()
    shelf.take()
    shelf.settle()
    assert shelf.finished == {("t", 0): 6}
    shelf.finish()
    assert shelf.finished == {("t", 0): 7}


@given(st.lists(st.integers(0, 3), max_size=60), st.data())
def test_any_mix_of_taking_pausing_and_settling_hands_out_each_message_once_in_order(
    partitions: list[int], data: st.DataObject
) -> None:
    counts = dict.fromkeys(range(4), 0)
    fetched = []
    for partition in partitions:
        fetched.append(Raw(partition, counts[partition]))
        counts[partition] += 1
    shelf = shelf_with(*fetched)
    taken: dict[int, list[int]] = {partition: [] for partition in range(4)}
    paused: set[int] = set()
    in_hand: Message | None = None
    while sum(map(len, taken.values())) < len(fetched):
        match data.draw(st.sampled_from(["take", "pause", "resume", "settle"])):
            case "take" if not shelf.is_empty:
                shelf.finish_in_hand()
                message = in_hand = shelf.take()
                assert message is not None
                assert message.partition not in paused
                taken[message.partition].append(message.offset)
            case "pause":
                paused.add(data.draw(st.integers(0, 3)))
                shelf.hold({("t", partition) for partition in paused})
            case "settle":
                shelf.settle()
            case _:
                shelf.release([("t", partition) for partition in paused])
                paused.clear()
        for partition, offsets in taken.items():
            is_in_hand = in_hand is not None and in_hand.partition == partition
            assert shelf.handed_out().get(("t", partition), 0) == len(offsets)
            assert shelf.finished.get(("t", partition), 0) <= len(offsets) - is_in_hand
    assert all(offsets == sorted(offsets) for offsets in taken.values())
    shelf.finish()
    assert shelf.finished == {("t", p): count for p, count in counts.items() if count}


def test_a_message_in_parts_holds_the_commit_at_its_first_part_until_it_is_finished() -> None:
    one, two = (
        Raw(0, offset, piece, [("own", b"h"), (PART_HEADER, part.encode())])
        for offset, (part, piece) in zip((4, 6), split(b"ab", 1, bytes(16)), strict=True)
    )
    shelf = shelf_with(Raw(0, 3), one, Raw(0, 5), two)
    shelf.take()
    assert shelf.take() is None
    shelf.take()
    assert shelf.handed_out() == {("t", 0): 4}
    shelf.finish_in_hand()
    whole = shelf.take()
    assert whole is not None
    assert (whole.value, whole.offset, whole.first_offset) == (b"ab", 6, 4)
    assert whole.headers == [("own", b"h")]
    shelf.settle()
    assert shelf.finished == {("t", 0): 4}
    shelf.finish()
    assert shelf.finished == {("t", 0): 7}


def test_what_is_forgotten_is_not_handed_out() -> None:
    shelf = shelf_with(Raw(0, 1), Raw(1, 1))
    shelf.forget({("t", 0)})
    message = shelf.take()
    assert message is not None
    assert message.partition == 1
    assert shelf.is_empty


def test_all_messages_of_a_batch_are_in_hand_until_the_next_is_asked_for() -> None:
    shelf = shelf_with(*(Raw(0, n) for n in range(3)))
    shelf.take()
    shelf.take_more()
    shelf.settle()
    assert shelf.finished == {}
    shelf.finish_in_hand()
    shelf.settle()
    assert shelf.finished == {("t", 0): 2}


def test_a_message_in_hand_is_forgotten_with_its_partition() -> None:
    shelf = shelf_with(Raw(0, 1), Raw(1, 1))
    shelf.take()
    shelf.take_more()
    shelf.forget({("t", 0)})
    shelf.finish()
    assert shelf.finished == {("t", 1): 2}
    assert shelf.received == 2


def test_a_part_that_is_refused_is_refused_again_and_never_passed() -> None:
    ((part, piece), *_) = split(b"ab", 1, bytes(16))
    shelf = shelf_with(Raw(0, 0), Raw(0, 1, piece, [(PART_HEADER, part.encode())]))
    shelf.refuses_parts = True
    assert shelf.take() is not None
    assert shelf.take_more() is None
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="t-0@1 is a part of a split message"):
            shelf.take()
    shelf.finish()
    assert shelf.finished == {("t", 0): 1}
