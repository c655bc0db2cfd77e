from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kafka.memory import FrameMemory

MB = 1 << 20


class Asker:
    """Waits in line, and keeps what it is granted."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
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


class MemoryMachine(RuleBasedStateMachine):
    """Any order of taking, asking, giving back and giving up."""

    @initialize(limit=st.sampled_from([MB, 3 * MB, 6 * MB]))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.memory = FrameMemory(limit)
        self.held: list[bytearray] = []
        self.line: list[Asker] = []

    def _collect(self) -> None:
        """What was granted to those in line is now held."""
        while self.line and self.line[0].buffer is not None:
            self.held.append(self.line.pop(0).buffer or bytearray())

    @rule(size=st.sampled_from([1, MB, MB + 1, 3 * MB]))
    def take_or_ask(self, size: int) -> None:
        buffer = self.memory.take(size)
        if buffer is not None:
            assert not self.line, "nobody overtakes"
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
    def withdraw(self, number: int) -> None:
        if self.line:
            asker = self.line.pop(number % len(self.line))
            self.memory.withdraw(asker.granted)
            assert asker.buffer is None
            self._collect()

    @invariant()
    def the_limit_is_kept(self) -> None:
        used = sum(map(len, self.held))
        assert self.memory.used_bytes == used
        assert used <= self.limit or len(self.held) == 1
        assert len({id(buffer) for buffer in self.held}) == len(self.held)

    @invariant()
    def grants_are_in_line_and_nobody_waits_for_nothing(self) -> None:
        assert all(asker.buffer is None for asker in self.line)
        assert self.memory.waiting == len(self.line)
        assert self.held or not self.line

    def teardown(self) -> None:
        while self.held:
            self.memory.give(self.held.pop())
            self._collect()
        assert not self.line, "everyone had their turn"


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMemory = MemoryMachine.TestCase
