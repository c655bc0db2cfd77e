import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.partitions.waiters import (
    DelayedFetch,
    HighWatermarkWaiters,
    Watcher,
    unwatch,
    watch,
)

DATA, CHANGE, DEADLINE, CANCEL = "data", "change", "deadline", "cancel"
SIZES = st.integers(min_value=1, max_value=30)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just(DATA), SIZES),
        st.tuples(st.sampled_from([CHANGE, DEADLINE, CANCEL]), st.just(0)),
    ),
    max_size=12,
)


class Place:
    """Something that can be watched."""

    def __init__(self) -> None:
        self.watchers: set[Watcher] | None = None
        self.replica_watchers: set[Watcher] | None = None

    def tell(self, kind: str, size_bytes: int) -> None:
        for watcher in list(self.watchers or ()):
            if kind == DATA:
                watcher.grew(self, size_bytes)
                watcher.try_complete()
            else:
                watcher.changed(self)


@dataclass
class Timer:
    due: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Timers:
    """As much of an event loop as a waiter needs."""

    set: list[Timer] = field(default_factory=list)

    def call_later(self, _delay_s: float, due: Callable[[], None]) -> Timer:
        self.set.append(Timer(due))
        return self.set[-1]

    def ring(self) -> None:
        for timer in self.set:
            if not timer.is_cancelled:
                timer.due()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


def park(
    timers: Timers,
    places: list[Place],
    lacking_bytes: int,
    fire: Callable[[], None],
    recount: Callable[[], int] | None = None,
    *,
    recheck_always: bool = False,
) -> DelayedFetch:
    return DelayedFetch(
        places,
        lacking_bytes,
        1.0,
        fire,
        timers,  # type: ignore[arg-type] # a loop's timers
        recount=recount,
        recheck_always=recheck_always,
    )


@given(EVENTS, SIZES)
def test_a_waiter_fires_once_at_the_first_reason_and_lets_go_of_everything(
    events: list[tuple[str, int]], lacking_bytes: int
) -> None:
    timers, place, fired = Timers(), Place(), []
    waiter = park(timers, [place], lacking_bytes, lambda: fired.append(True))
    left_bytes, ended, expected = lacking_bytes, False, 0
    for kind, size_bytes in events:
        left_bytes -= size_bytes
        if not ended and (kind in (CHANGE, DEADLINE) or (kind == DATA and left_bytes <= 0)):
            ended, expected = True, 1
        elif kind == CANCEL:
            ended = True

        if kind == CANCEL:
            waiter.cancel()
        elif kind == DEADLINE:
            timers.ring()
        else:
            place.tell(kind, size_bytes)

        assert len(fired) == expected
        assert timers.set[0].is_cancelled == ended
        assert bool(place.watchers) == (not ended)


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=10), SIZES, st.booleans())
def test_a_waiter_fires_when_the_true_count_is_reached_not_the_apparent_one(
    growth: list[tuple[int, bool]], lacking_bytes: int, recheck_always: bool
) -> None:
    timers, place, fired = Timers(), Place(), []
    visible = 0

    def lacking() -> int:
        return lacking_bytes - visible

    park(
        timers,
        [place],
        lacking_bytes,
        lambda: fired.append(True),
        lacking,
        recheck_always=recheck_always,
    )
    for size_bytes, is_visible in growth:
        visible += size_bytes if is_visible else 0
        place.tell(DATA, size_bytes)
        assert len(fired) == (visible >= lacking_bytes)


def test_a_wary_waiter_sees_what_a_few_bytes_have_made_visible() -> None:
    timers, place, fired = Timers(), Place(), []
    lacking = [1000]
    park(timers, [place], 1000, lambda: fired.append(True), lambda: lacking[0], recheck_always=True)
    place.tell(DATA, 1)
    assert not fired

    lacking[0] = 0
    place.tell(DATA, 1)
    assert fired


def test_a_waiter_may_be_told_of_growth_after_it_was_cancelled() -> None:
    """Who goes through a list of watchers may come to one that is gone meanwhile."""
    timers, fired = Timers(), []
    waiter = park(timers, [], 1, lambda: fired.append(True), lambda: 1 // 0)
    waiter.cancel()
    waiter.bytes_arrived(100)
    waiter.try_complete()
    waiter.fire()
    assert not fired


def test_watching_twice_is_watching_once_and_unwatching_may_be_repeated() -> None:
    place, watcher = Place(), DelayedFetch([], 1, 1.0, lambda: None, Timers())  # type: ignore[arg-type] # a loop's timers
    unwatch(place, watcher)
    watch(place, watcher)
    watch(place, watcher)
    unwatch(place, watcher)
    unwatch(place, watcher)
    assert not place.watchers


# Commits ---------------------------------------------------------------------------------------


def test_who_waits_is_released_in_order_when_the_high_watermark_passes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commits = HighWatermarkWaiters()
    released: list[int] = []

    def wait_for(offset: int) -> None:
        commits.wait_for(offset, loop).add_done_callback(lambda _: released.append(offset))

    for offset in (3, 5, 5, 9):
        wait_for(offset)
    commits.passed(4)
    loop.run_until_complete(asyncio.sleep(0))
    assert released == [3]
    commits.passed(8)
    loop.run_until_complete(asyncio.sleep(0))
    assert released == [3, 5, 5]
    assert len(commits) == 1
    commits.passed(9)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(1, 20)),
            st.tuples(st.just("pass"), st.integers(1, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
            st.tuples(st.just("fail"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_each_wait_ends_exactly_when_its_offset_is_passed_or_all_failed(
    events: list[tuple[str, int]],
) -> None:
    loop = asyncio.new_event_loop()
    commits, high_watermark = HighWatermarkWaiters(), 0
    waits: list[tuple[int, asyncio.Future[None], list[str]]] = []
    for kind, number in events:
        match kind:
            case "wait" if number > high_watermark:
                waits.append((number, commits.wait_for(number, loop), []))
            case "pass":
                high_watermark = max(high_watermark, number)
                commits.passed(high_watermark)
                for offset, _, ends in waits:
                    if not ends and offset <= high_watermark:
                        ends.append("passed")
            case "cancel" if waits:
                _, future, ends = waits[number % len(waits)]
                future.cancel()
                if not ends:
                    ends.append("cancelled")
            case "fail":
                commits.fail(ConnectionError())
                for _, _, ends in waits:
                    if not ends:
                        ends.append("failed")
            case _:
                continue
        for _, future, ends in waits:
            assert how(future) == ends, (kind, number)
    loop.close()


def how(future: "asyncio.Future[None]") -> list[str]:
    if not future.done():
        return []
    if future.cancelled():
        return ["cancelled"]
    return ["passed" if future.exception() is None else "failed"]


def test_a_duplicate_of_an_earlier_append_does_not_wait_for_later_ones(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commits = HighWatermarkWaiters()
    later, earlier = commits.wait_for(10, loop), commits.wait_for(5, loop)
    commits.passed(5)
    assert (earlier.done(), later.done()) == (True, False)
    commits.passed(10)


def test_waits_that_were_given_up_are_forgotten_though_nothing_is_ever_committed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commits = HighWatermarkWaiters()
    patient = [commits.wait_for(offset, loop) for offset in range(1, 101)]
    for offset in range(101, 5000):
        commits.wait_for(offset, loop).cancel()
        assert len(commits) <= 200
    commits.passed(5000)
    assert all(future.done() for future in patient)
