"""The window of a share group or queue: messages a second and core, beside a plain dict. `make bench B=windows`

Both do the same in one run: acquire a range and settle it, over and over. The plain form has one small object for
each message in flight, as a first draft would have it. CPU time, the best of some rounds.
"""

import sys
from collections.abc import Callable
from time import process_time
from tracemalloc import get_traced_memory, start, stop
from typing import Final

from penstock.queues.record_states import AckType
from penstock.queues.window import Window
from penstock.queues.window_results import Settlement
from penstock.queues.window_settings import WindowSettings
from penstock.queues.window_state import WindowState

MESSAGES: Final = 200_000
ROUNDS: Final = 5
OWNER: Final = "member"
READABLE: Final = 1 << 60
SETTINGS: Final = WindowSettings(
    max_locks=1_000_000, max_uncommitted_offsets=1 << 40, delivery_limit=255
)


class PlainRecord:
    __slots__ = ("count", "deadline_ms", "owner", "state")

    def __init__(self) -> None:
        self.state = 0
        self.count = 0
        self.owner = ""
        self.deadline_ms = 0


class PlainWindow:
    """A dict of offset to record: what is compared."""

    def __init__(self) -> None:
        self.start = self.cursor = 0
        self.records: dict[int, PlainRecord] = {}

    def acquire(self, limit: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        for offset in range(self.start, READABLE):
            if len(taken) == limit:
                break
            record = self.records.get(offset)
            if record is None:
                record = self.records[offset] = PlainRecord()
            if record.state == 0:
                record.state = 1
                record.count += 1
                record.owner = OWNER
                record.deadline_ms = 30_000
                taken.append((offset, record.count))
        return taken

    def settle(self, first: int, end: int, state: int) -> None:
        for offset in range(first, end):
            record = self.records[offset]
            assert record.state == 1
            assert record.owner == OWNER
            record.state = state
        while self.start in self.records and self.records[self.start].state == 2:
            del self.records[self.start]
            self.start += 1


def new_window() -> Window:
    state = WindowState(state_epoch=0, leader_epoch=0, start_offset=0)
    return Window.load(SETTINGS, state, leader_epoch=0, log_start=0, log_end=READABLE)


def accept(window: Window, first: int, end: int) -> None:
    window.settle(OWNER, (Settlement(first, end, AckType.ACCEPT),), 0)


def in_ranges(size: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Acquire and accept ranges of a size; a state update for each 1,000 messages."""
    count = MESSAGES // size

    def ours() -> None:
        window = new_window()
        for number in range(count):
            for delivery in window.acquire(OWNER, size, READABLE, 0).deliveries:
                accept(window, delivery.first, delivery.end)
            if number % max(1, 1000 // size) == 0:
                write(window)

    def plain() -> None:
        window = PlainWindow()
        for _ in range(count):
            taken = window.acquire(size)
            window.settle(taken[0][0], taken[-1][0] + 1, 2)

    return ours, plain


def write(window: Window) -> None:
    update = window.update()
    if update is not None:
        window.committed(update.number)


def one_by_one() -> tuple[Callable[[], None], Callable[[], None]]:
    """Acquire ranges of 256, accept each message by itself: an AMQP consumer that acks each."""

    def ours() -> None:
        window = new_window()
        for _ in range(MESSAGES // 256):
            for delivery in window.acquire(OWNER, 256, READABLE, 0).deliveries:
                for offset in range(delivery.first, delivery.end):
                    accept(window, offset, offset + 1)
            write(window)

    def plain() -> None:
        window = PlainWindow()
        for _ in range(MESSAGES // 256):
            for offset, _ in window.acquire(256):
                window.settle(offset, offset + 1, 2)

    return ours, plain


def backwards() -> tuple[Callable[[], None], Callable[[], None]]:
    """The same, the last message first: the start moves once for each range."""

    def ours() -> None:
        window = new_window()
        for _ in range(MESSAGES // 256):
            for delivery in window.acquire(OWNER, 256, READABLE, 0).deliveries:
                for offset in range(delivery.end - 1, delivery.first - 1, -1):
                    accept(window, offset, offset + 1)
            write(window)

    def plain() -> None:
        window = PlainWindow()
        for _ in range(MESSAGES // 256):
            for offset, _ in reversed(window.acquire(256)):
                window.settle(offset, offset + 1, 2)

    return ours, plain


def redelivered() -> tuple[Callable[[], None], Callable[[], None]]:
    """Acquire ranges of 500, release them, acquire them again and accept them."""

    def ours() -> None:
        window = new_window()
        for _ in range(MESSAGES // 500):
            (delivery,) = window.acquire(OWNER, 500, READABLE, 0).deliveries
            release = Settlement(delivery.first, delivery.end, AckType.RELEASE)
            window.settle(OWNER, (release,), 0)
            (delivery,) = window.acquire(OWNER, 500, READABLE, 0).deliveries
            accept(window, delivery.first, delivery.end)
            write(window)

    def plain() -> None:
        window = PlainWindow()
        for _ in range(MESSAGES // 500):
            taken = window.acquire(500)
            window.settle(taken[0][0], taken[-1][0] + 1, 0)
            taken = window.acquire(500)
            window.settle(taken[0][0], taken[-1][0] + 1, 2)

    return ours, plain


def behind_one() -> tuple[Callable[[], None], None]:
    """The first message is never acknowledged; the others follow in ranges of 500."""

    def ours() -> None:
        window = new_window()
        window.acquire("slow", 1, READABLE, 0)
        for _ in range(MESSAGES // 500):
            (delivery,) = window.acquire(OWNER, 500, READABLE, 0).deliveries
            accept(window, delivery.first, delivery.end)
            write(window)

    return ours, None


def best_seconds(call: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun_s = process_time()
        call()
        times.append(process_time() - begun_s)
    return min(times)


def report_speed() -> None:
    print(f"{'acquire + accept':34}{'µs/msg':>9}{'msg/s':>14}{'plain msg/s':>14}{'ratio':>8}")
    cases: dict[str, tuple[Callable[[], None], Callable[[], None] | None]] = {
        **{f"ranges of {size:,}": in_ranges(size) for size in (1, 10, 100, 500, 2000)},
        "ranges of 256, accept each": one_by_one(),
        "the same, last one first": backwards(),
        "ranges of 500, released once": redelivered(),
        "ranges of 500 behind an old one": behind_one(),
    }
    for name, (ours, plain) in cases.items():
        seconds = best_seconds(ours)
        row = f"{name:34}{seconds / MESSAGES * 1e6:>9.3f}{MESSAGES / seconds:>14,.0f}"
        if plain is not None:
            plain_seconds = best_seconds(plain)
            row += f"{MESSAGES / plain_seconds:>14,.0f}{plain_seconds / seconds:>8.1f}"
        print(row)


def report_memory() -> None:
    """Bytes for each message in flight, acquired in ranges of 256."""
    print(f"\n{'in flight':34}{'bytes/msg':>9}")
    for name, fill in (("window", fill_window), ("plain", fill_plain)):
        start()
        kept = fill()
        print(f"{name:34}{get_traced_memory()[0] / MESSAGES:>9.2f}")
        stop()
        del kept


def fill_window() -> Window:
    window = new_window()
    for _ in range(MESSAGES // 256):
        window.acquire(OWNER, 256, READABLE, 0)
    return window


def fill_plain() -> PlainWindow:
    window = PlainWindow()
    for number in range(MESSAGES):
        window.records[number] = PlainRecord()
    return window


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, {MESSAGES:,} messages, best of {ROUNDS}\n")
    report_speed()
    report_memory()
