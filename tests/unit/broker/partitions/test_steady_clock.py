import logging

import pytest

from penstock.broker.partitions.steady_clock import SteadyClock
from tests.support.clocks import ManualClock

HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_it_goes_with_the_wall_clock_and_follows_small_corrections(clock: ManualClock) -> None:
    steady = SteadyClock(clock)
    for correction_ms in (0, 500, -500, 30_000, -30_000, 30_000, 30_000, 30_000):
        clock.advance(HOUR_MS)
        clock.set_wall(clock.wall_ms() + correction_ms)
        assert steady.now_ms() == clock.wall_ms()


def test_a_jump_forward_counts_only_after_an_hour(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    steady, before_ms = SteadyClock(clock), clock.wall_ms()
    clock.set_wall(before_ms + 30 * DAY_MS)
    assert steady.now_ms() == before_ms
    clock.advance(HOUR_MS - 1)
    assert steady.now_ms() == before_ms + HOUR_MS - 1, "meanwhile time goes on"
    clock.advance(1)
    assert steady.now_ms() == clock.wall_ms() == before_ms + HOUR_MS + 30 * DAY_MS
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["clock-jumped", "clock-believed"]


def test_a_clock_that_is_put_right_in_time_has_done_nothing(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    steady = SteadyClock(clock)
    clock.set_wall(clock.wall_ms() + 30 * DAY_MS)
    steady.now_ms()
    clock.advance(HOUR_MS // 2)
    clock.set_wall(clock.wall_ms() - 30 * DAY_MS)
    with caplog.at_level(logging.INFO):
        assert steady.now_ms() == clock.wall_ms()
    assert "clock-set-back" in caplog.text
    clock.set_wall(clock.wall_ms() + 30 * DAY_MS)
    assert steady.now_ms() == clock.wall_ms() - 30 * DAY_MS, "the next jump has an hour of its own"


def test_a_jump_back_is_followed_at_once(clock: ManualClock) -> None:
    steady = SteadyClock(clock)
    clock.set_wall(clock.wall_ms() - 30 * DAY_MS)
    assert steady.now_ms() == clock.wall_ms()


def test_a_second_jump_has_an_hour_of_its_own(clock: ManualClock) -> None:
    steady = SteadyClock(clock)
    clock.set_wall(clock.wall_ms() + 61_000)
    steady.now_ms()
    clock.advance(HOUR_MS - 1000)
    clock.set_wall(clock.wall_ms() + 30 * DAY_MS)
    steady.now_ms()
    clock.advance(2000)
    assert clock.wall_ms() - steady.now_ms() == 30 * DAY_MS + 61_000
    clock.advance(HOUR_MS)
    assert steady.now_ms() == clock.wall_ms()
