"""The persisted state: a later update wins, lower epochs are fenced, damage is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.record_states import RecordState, StateBatch
from penstock.queues.window_state import DamagedState, StateUpdate, WindowState

AVAILABLE, ACKED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED
STORED = (AVAILABLE, ACKED, RecordState.ARCHIVING, RecordState.ARCHIVED)


def state_of(*batches: StateBatch, start: int = 0) -> WindowState:
    return WindowState(state_epoch=2, leader_epoch=5, start_offset=start, batches=batches)


def update_of(
    *batches: StateBatch, start: int = 0, state_epoch: int = 2, leader_epoch: int = 5
) -> StateUpdate:
    return StateUpdate(
        number=1,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start,
        batches=batches,
        settled_count=0,
        cursor=0,
    )


@st.composite
def batch_lists(draw: st.DrawFn) -> tuple[StateBatch, ...]:
    batches = []
    position = 0
    for apart, size in draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=8)):
        first = position + apart
        position = first + size
        state, count = draw(st.sampled_from(STORED)), draw(st.integers(0, 2))
        batches.append(StateBatch(first, position, state, count))
    return tuple(batches)


def by_offset(batches: tuple[StateBatch, ...]) -> dict[int, tuple[RecordState, int]]:
    return {
        offset: (batch.state, batch.delivery_count)
        for batch in batches
        for offset in range(batch.first, batch.end)
    }


@given(old=batch_lists(), new=batch_lists(), start=st.integers(0, 60))
def test_an_update_overrides_offset_by_offset(
    old: tuple[StateBatch, ...], new: tuple[StateBatch, ...], start: int
) -> None:
    found = state_of(*old).apply(update_of(*new, start=start))
    expected = by_offset(old) | by_offset(new)
    expected = {o: v for o, v in expected.items() if o >= start and v != (AVAILABLE, 0)}
    assert by_offset(found.batches) == expected
    assert sum(batch.end - batch.first for batch in found.batches) == len(expected)
    assert found.start_offset == start
    found.check()
    for left, right in zip(found.batches, found.batches[1:], strict=False):
        assert left.end < right.first or left[2:] != right[2:], "neighbours are joined"


def test_updates_of_an_older_leader_are_fenced() -> None:
    with pytest.raises(BrokerError, match="leader epoch 4 is below 5") as caught:
        state_of().apply(update_of(leader_epoch=4))
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_updates_of_an_older_state_epoch_are_fenced() -> None:
    with pytest.raises(BrokerError, match="state epoch 1 is below 2") as caught:
        state_of().apply(update_of(state_epoch=1))
    assert caught.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_an_update_of_a_newer_leader_raises_the_epoch() -> None:
    assert state_of().apply(update_of(leader_epoch=9)).leader_epoch == 9


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (state_of(start=-1), "not initialised"),
        (state_of(StateBatch(3, 6, ACKED, 0), StateBatch(5, 8, ACKED, 0)), "do not overlap"),
        (state_of(StateBatch(3, 3, ACKED, 0)), "batch 3 to 3"),
        (state_of(StateBatch(3, 5, ACKED, 0), start=4), "batch 3 to 5 after offset 4"),
        (state_of(StateBatch(3, 5, RecordState.DELAYED, 0)), "has state"),
        (state_of(StateBatch(3, 5, AVAILABLE, -1)), "delivery count -1"),
        (state_of(StateBatch(3, 5, AVAILABLE, 1 << 15)), "delivery count 32768"),
        (state_of(StateBatch(3, 1 << 63, ACKED, 0)), "batch 3 to"),
    ],
)
def test_a_damaged_state_is_found(state: WindowState, text: str) -> None:
    with pytest.raises(DamagedState, match=text):
        state.check()
