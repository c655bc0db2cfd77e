from time import monotonic_ns, time_ns

from penstock.model.clock import Clock
from penstock.node.clock import SystemClock


def test_both_times_are_milliseconds_of_the_machines_clock() -> None:
    clock: Clock = SystemClock()
    wall_before, monotonic_before = time_ns(), monotonic_ns()
    wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
    assert wall_before // 1_000_000 <= wall_ms <= time_ns() // 1_000_000
    assert monotonic_before // 1_000_000 <= monotonic_ms <= monotonic_ns() // 1_000_000
