from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kafka.memory import FrameMemory

MB = 1 << 20


class Asker:
    """Waits in line, and keeps what it is granted."""

    def __init__(self, size_bytes: int, held: bytearray | None = None) -> None:
        self.size_bytes = size_bytes
        self.held = held
        self.buffer: bytearray | None = None

    def granted(self, buffer: bytearray) -> None:
        assert self.buffer is None, "granted once"
        self.buffer = buffer


def test_a_buffer_is_large_enough_and_comes_back_from_the_pool() -> None:
    memory = FrameMemory(100 * MB)
    first = memory.take(3 * MB)
    assert first is not None
    assert len(first) >= 3 * MB
    memory.give(first)
    assert memory.take(3 * MB) is first
    other = memory.take(3 * MB)
    assert other is not first


def test_one_buffer_is_granted_whatever_its_size() -> None:
    memory = FrameMemory(2 * MB)
    large = memory.take(50 * MB)
    assert large is not None
    assert memory.take(1) is None
    memory.give(large)
    assert memory.take(1) is not None


def test_nobody_overtakes_who_waits() -> None:
    memory = FrameMemory(4 * MB)
    held = memory.take(2 * MB)
    assert held is not None
    large, small = Asker(4 * MB), Asker(1)
    memory.ask(4 * MB, large.granted)
    memory.ask(1, small.granted)
    assert memory.take(1) is None, "there is room, but others were first"
    memory.give(held)
    assert large.buffer is not None
    assert small.buffer is None
    memory.give(large.buffer)
    assert small.buffer is not None


def test_who_withdraws_makes_way_for_those_behind() -> None:
    memory = FrameMemory(4 * MB)
    assert memory.take(2 * MB) is not None
    large, small = Asker(4 * MB), Asker(1)
    memory.ask(4 * MB, large.granted)
    memory.ask(1, small.granted)
    assert small.buffer is None
    memory.withdraw(large.granted)
    assert (large.buffer, small.buffer is not None, memory.waiting) == (None, True, 0)
    memory.withdraw(large.granted)


def test_free_buffers_are_kept_up_to_a_limit() -> None:
    memory = FrameMemory(1000 * MB)
    taken = [memory.take(MB) for _ in range(100)]
    for buffer in taken:
        assert buffer is not None
        memory.give(buffer)
    assert memory.used_bytes == 0
    assert memory._free_bytes <= 64 * MB


def test_what_is_granted_may_be_given_back_at_once() -> None:
    """A frame that was whole already is done with before `give` returns."""
    memory, done = FrameMemory(MB), []

    def granted(buffer: bytearray) -> None:
        done.append(buffer)
        memory.give(buffer)

    held = memory.take(1)
    assert held is not None
    for _ in range(5):
        memory.ask(1, granted)
    memory.give(held)
    assert len(done) == 5
    assert (memory.used_bytes, memory.waiting) == (0, 0)


def test_a_buffer_is_exchanged_for_a_larger_one_with_the_same_contents() -> None:
    memory = FrameMemory(8 * MB)
    held = memory.take(MB)
    assert held is not None
    held[:] = b"x" * MB
    larger = memory.grow(held)
    assert larger is not None
    assert (len(larger), larger[:MB] == b"x" * MB) == (2 * MB, True)
    assert memory.used_bytes == 2 * MB
    assert memory.take(MB) is held, "it is free again"


def test_who_holds_memory_gets_more_before_those_who_hold_none() -> None:
    memory = FrameMemory(3 * MB)
    growing, other = memory.take(2 * MB), memory.take(MB)
    assert growing is not None
    assert other is not None
    beginner, grower = Asker(MB), Asker(4 * MB)
    memory.ask(MB, beginner.granted)
    assert memory.grow(growing) is None
    memory.ask_larger(growing, grower.granted)
    memory.give(other)
    assert grower.buffer is not None, "nobody else could make room"
    assert beginner.buffer is None
    memory.give(grower.buffer)
    assert beginner.buffer is not None


def test_when_all_wait_for_more_one_goes_on_beyond_the_limit_and_the_others_after_it() -> None:
    memory = FrameMemory(4 * MB)
    first, second = memory.take(2 * MB), memory.take(2 * MB)
    assert first is not None
    assert second is not None
    asker = Asker(4 * MB)
    assert memory.grow(first) is None
    memory.ask_larger(first, asker.granted)
    larger = memory.grow(second)
    assert larger is not None
    largest = memory.grow(larger)
    assert largest is not None
    assert asker.buffer is None
    memory.give(largest)
    assert asker.buffer is not None
    assert memory.used_bytes == 4 * MB


def test_who_withdraws_from_waiting_for_more_still_gives_back_what_it_held() -> None:
    memory = FrameMemory(2 * MB)
    first, second = memory.take(MB), memory.take(MB)
    assert first is not None
    assert second is not None
    gone, stays = Asker(2 * MB), Asker(MB)
    memory.ask_larger(first, gone.granted)
    memory.ask(MB, stays.granted)
    memory.withdraw(gone.granted)
    memory.give(first)
    assert (gone.buffer, stays.buffer is not None, memory.waiting) == (None, True, 0)
    assert memory.grow(second) is None, "not everyone else waits for more"


class MemoryMachine(RuleBasedStateMachine):
    """Any order of taking, asking, growing, giving back and giving up."""

    @initialize(limit=st.sampled_from([MB, 3 * MB, 6 * MB]))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.memory = FrameMemory(limit)
        self.held: list[bytearray] = []
        self.line: list[Asker] = []
        self.stuck: list[Asker] = []  # the last who asked first

    def _collect(self) -> None:
        """What was granted to those in line is now held."""
        while self.stuck and self.stuck[0].buffer is not None:
            self.held.append(self.stuck.pop(0).buffer or bytearray())
        while self.line and self.line[0].buffer is not None:
            self.held.append(self.line.pop(0).buffer or bytearray())

    @rule(size=st.sampled_from([1, MB, MB + 1, 3 * MB]))
    def take_or_ask(self, size: int) -> None:
        buffer = self.memory.take(size)
        if buffer is not None:
            assert not [*self.stuck, *self.line], "nobody overtakes"
            assert len(buffer) >= size
            self.held.append(buffer)
            return
        asker = Asker(size)
        self.line.append(asker)
        self.memory.ask(size, asker.granted)

    @rule(number=st.integers(0, 20))
    def give(self, number: int) -> None:
        if self.held:
            self.memory.give(self.held.pop(number % len(self.held)))
            self._collect()

    @rule(number=st.integers(0, 20))
    def grow(self, number: int) -> None:
        growing = [buffer for buffer in self.held if len(buffer) < 16 * MB]
        if not growing:
            return
        held = growing[number % len(growing)]
        self.held = [buffer for buffer in self.held if buffer is not held]
        larger = self.memory.grow(held)
        if larger is not None:
            assert len(larger) == 2 * len(held)
            self.held.append(larger)
            return
        self.stuck.insert(0, Asker(2 * len(held), held))
        self.memory.ask_larger(held, self.stuck[0].granted)

    @rule(number=st.integers(0, 20))
    def withdraw_and_give(self, number: int) -> None:
        if self.stuck:
            asker = self.stuck.pop(number % len(self.stuck))
            self.memory.withdraw(asker.granted)
            assert asker.buffer is None
            self._collect()
            self.memory.give(asker.held or bytearray())
            self._collect()

    @rule(number=st.integers(0, 20))
    def withdraw(self, number: int) -> None:
        if self.line:
            asker = self.line.pop(number % len(self.line))
            self.memory.withdraw(asker.granted)
            assert asker.buffer is None
            self._collect()

    @invariant()
    def only_one_is_beyond_the_limit(self) -> None:
        held = [*self.held, *(asker.held or b"" for asker in self.stuck)]
        used = sum(map(len, held))
        assert self.memory.used_bytes == used
        assert used <= self.limit or used - len(self.held[0]) <= self.limit
        assert used <= self.limit or len(self.held) == 1
        assert len({id(buffer) for buffer in held}) == len(held)

    @invariant()
    def grants_are_in_line_and_nobody_waits_for_nothing(self) -> None:
        assert all(asker.buffer is None for asker in [*self.stuck, *self.line])
        assert self.memory.waiting == len(self.stuck) + len(self.line)
        assert self.held or not (self.stuck or self.line)

    def teardown(self) -> None:
        while self.held:
            self.memory.give(self.held.pop())
            self._collect()
        assert not [*self.stuck, *self.line], "everyone had their turn"


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMemory = MemoryMachine.TestCase
