"""A commit never passes a message that is not finished, in whatever order messages finish."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.offsets import OffsetTracker

offset_runs = st.lists(st.integers(1, 5), min_size=1, max_size=60)  # gaps: compaction, markers


@given(offset_runs, st.data())
def test_everything_before_the_committed_offset_is_finished_and_nothing_finished_is_held_back(
    gaps: list[int], data: st.DataObject
) -> None:
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    tracker = OffsetTracker()
    waiting: list[int] = []
    finished: set[int] = set()
    todo = list(offsets)
    last = 0
    while todo or waiting:
        if todo and (not waiting or data.draw(st.booleans())):
            waiting.append(todo.pop(0))
            tracker.start(waiting[-1])
        else:
            done = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            tracker.finish(done)
            finished.add(done)
        started = offsets[: len(offsets) - len(todo)]
        unfinished = [offset for offset in started if offset not in finished]
        expected = min(unfinished) if unfinished else started[-1] + 1
        assert tracker.next_offset == expected >= last
        assert tracker.in_work == len(unfinished)
        last = expected


def test_a_tracker_without_messages_has_nothing_to_commit() -> None:
    assert OffsetTracker().next_offset is None


def test_a_message_in_parts_holds_its_first_offset_and_frees_its_last() -> None:
    tracker = OffsetTracker()
    tracker.start(3, last_offset=7)
    assert tracker.next_offset == 3
    tracker.finish(3)
    assert tracker.next_offset == 8
