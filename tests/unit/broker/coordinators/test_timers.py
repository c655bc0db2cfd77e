"""Timers: each fires once, at its time and in order, whatever was set, moved and cancelled before."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.coordinators.timers import Timers


class Wake:
    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms, self.callback, self.is_cancelled = at_ms, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Machine:
    """A clock, and the part of a loop that timers use."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.fired: list[tuple[int, str, int]] = []
        self._wakes: list[Wake] = []
        self.timers: Timers[str, int] = Timers(self, self, self.fire)

    def wall_ms(self) -> int:
        raise AssertionError("timers do not look at the wall")

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Wake:
        wake = Wake(self.now_ms + round(delay * 1000), callback)
        self._wakes.append(wake)
        return wake

    def fire(self, key: str, what: int) -> None:
        self.fired.append((self.now_ms, key, what))

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while due := [w for w in self._wakes if w.at_ms <= end_ms and not w.is_cancelled]:
            wake = min(due, key=lambda w: w.at_ms)
            self._wakes.remove(wake)
            self.now_ms = max(self.now_ms, wake.at_ms)
            wake.callback()
        self.now_ms = end_ms

    @property
    def armed(self) -> int:
        return sum(1 for wake in self._wakes if not wake.is_cancelled)


keys = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.integers(0, 50)),
        st.tuples(st.just("cancel"), keys, st.just(0)),
        st.tuples(st.just("pass"), st.just(""), st.integers(0, 30)),
    )
)


@given(steps=steps)
def test_what_fires_is_what_a_plain_dictionary_of_deadlines_says(
    steps: list[tuple[str, str, int]],
) -> None:
    machine = Machine()
    plain: dict[str, tuple[int, int]] = {}
    expected: list[tuple[int, str, int]] = []
    for number, (what, key, ms) in enumerate(steps):
        if what == "set":
            machine.timers.set(key, machine.now_ms + ms, number)
            plain[key] = (machine.now_ms + ms, number)
        elif what == "cancel":
            machine.timers.cancel(key)
            plain.pop(key, None)
        else:
            end_ms = machine.now_ms + ms
            due = sorted((at, k, n) for k, (at, n) in plain.items() if at <= end_ms)
            expected += [(max(at, machine.now_ms), k, n) for at, k, n in due]
            for _, key_due, _ in due:
                del plain[key_due]
            machine.pass_time(ms)
        assert sorted(machine.fired) == sorted(expected)
        assert len(machine.timers) == len(plain)
        assert all(key in machine.timers for key in plain)
        assert machine.armed <= 1


def test_moving_a_timer_to_later_costs_no_place_in_the_heap() -> None:
    machine = Machine()
    for ms in range(1000):
        machine.timers.set("session", 6000 + ms, ms)

    assert len(machine.timers._heap) == 1
    machine.pass_time(6998)
    assert machine.fired == []
    machine.pass_time(1)
    assert machine.fired == [(6999, "session", 999)]


def test_one_that_sets_itself_into_the_past_does_not_hold_up_the_loop() -> None:
    machine = Machine()
    left = [3]

    def fire(key: str, what: int) -> None:
        machine.fired.append((machine.now_ms, key, what))
        if left[0]:
            left[0] -= 1
            machine.timers.set(key, machine.now_ms - 1000, what + 1)

    machine.timers = Timers(machine, machine, fire)
    machine.timers.set("a", 10, 0)
    machine.now_ms = 10
    for turn in range(4):
        machine.timers._run()
        assert len(machine.fired) == turn + 1
    assert len(machine.timers) == 0


def test_timers_that_are_over_early_do_not_stay_until_their_time() -> None:
    machine = Machine()
    machine.timers.set("lives", 2**31, 0)
    for number in range(10_000):
        machine.timers.set(f"member-{number}", 2**31 - number, number)
        machine.timers.cancel(f"member-{number}")

    assert len(machine.timers._heap) < 100
    machine.pass_time(2**31)
    assert machine.fired == [(2**31, "lives", 0)]


def test_nothing_fires_after_the_end() -> None:
    machine = Machine()
    machine.timers.set("a", 10, 1)
    machine.timers.close()
    machine.pass_time(100)

    assert machine.fired == []


def test_one_that_is_set_while_another_fires_does_not_put_off_the_others() -> None:
    machine = Machine()

    def fire(key: str, what: int) -> None:
        machine.fired.append((machine.now_ms, key, what))
        if key == "a":
            machine.timers.set("long", machine.now_ms + 300_000, 4)

    machine.timers = Timers(machine, machine, fire)
    machine.timers.set("a", 10, 1)
    machine.timers.set("b", 10, 2)
    machine.timers.set("b", 20, 3)  # moved to later: its place in the queue is found out at 10
    machine.pass_time(100)
    assert machine.fired == [(10, "a", 1), (20, "b", 3)]
