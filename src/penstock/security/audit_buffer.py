"""Audit events on their way out: a bounded buffer, and one event for many equal denials.

`note` never waits. When the buffer is full, the newest events are dropped and counted; the next
events that are drained begin with one that says how many.
"""

from collections import OrderedDict, deque
from typing import Final

from penstock.security.audit import Event, EventClass

MAX_EVENTS: Final = 50_000
MAX_REPEATED: Final = 10_000  # kinds of denials that are counted at a time
WINDOW_MS: Final = 10_000
DENIALS_PER_WINDOW: Final = 10  # of one kind that are written one by one

_Kind = tuple[object, ...]


class _Window:
    __slots__ = ("begin_ms", "count", "last")

    def __init__(self, event: Event) -> None:
        self.begin_ms = event.time_ms
        self.count = 0
        self.last = event


class AuditBuffer:
    """Owned by one event loop. The caller drains it and writes what it gets."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.dropped_total = 0
        self._max_events = max_events
        self._events: deque[Event] = deque()
        self._windows: OrderedDict[_Kind, _Window] = OrderedDict()  # by begin, oldest first
        self._dropped = 0  # not reported yet

    def __len__(self) -> int:
        return len(self._events)

    def note(self, event: Event) -> None:
        if event.is_allowed or self._is_one_by_one(event):
            self._append(event)

    def drain(self, now_ms: int, limit: int) -> list[Event]:
        """Return the oldest events, at most `limit`, and one that tells of those that are lost."""
        self._end_windows(now_ms)
        drained: list[Event] = []
        if self._dropped:
            drained.append(_lost(now_ms, self._dropped))
            self._dropped = 0
        while self._events and len(drained) < limit:
            drained.append(self._events.popleft())
        return drained

    def _is_one_by_one(self, event: Event) -> bool:
        """Count a denial. Past the first few of its kind in a window it is only counted."""
        kind = _kind(event)
        window = self._windows.get(kind)
        if window is not None and event.time_ms - window.begin_ms >= WINDOW_MS:
            self._end_window(kind)
            window = None
        if window is None:
            if len(self._windows) >= MAX_REPEATED:
                self._end_window(next(iter(self._windows)))
            window = self._windows[kind] = _Window(event)
        window.count += 1
        window.last = event
        return window.count <= DENIALS_PER_WINDOW

    def _end_windows(self, now_ms: int) -> None:
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now_ms - window.begin_ms < WINDOW_MS:
                return
            self._end_window(kind)

    def _end_window(self, kind: _Kind) -> None:
        window = self._windows.pop(kind)
        repeated = window.count - DENIALS_PER_WINDOW
        if repeated > 0:
            self._append(window.last._replace(times=repeated))

    def _append(self, event: Event) -> None:
        if len(self._events) >= self._max_events:
            self._dropped += event.times
            self.dropped_total += event.times
        else:
            self._events.append(event)


def _kind(event: Event) -> _Kind:
    return (
        event.event_class,
        event.activity,
        event.principal or event.host,  # a failed login has no principal
        event.operation,
        event.resource_type,
        event.resource_name,
    )


def _lost(now_ms: int, count: int) -> Event:
    return Event(
        now_ms,
        EventClass.LIFECYCLE,
        "events_dropped",
        is_allowed=False,
        reason="the audit buffer was full",
        times=count,
    )
