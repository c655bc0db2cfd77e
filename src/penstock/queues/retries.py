"""Released offsets that wait for their retry delay. In memory only: after a load they are available at once."""

from heapq import heappop, heappush


class RetryQueue:
    """An offset that was settled in the meantime stays in the queue until it is due."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []  # due time, first offset, end offset

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def add(self, due_ms: int, first: int, end: int) -> None:
        heappush(self._heap, (due_ms, first, end))

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heappop(self._heap)[1:])
        return due
