"""What a Producer or Consumer knows about its work: as properties, and as Prometheus text. Reading costs; counting does not."""

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.sdk.errors import PenstockError

WINDOW_S: Final = 30.0


class Rate:
    """A counter's growth a second, over the last half to whole window. Pure: the count and the time are given."""

    def __init__(self, now_s: float, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._older = self._newer = (now_s, 0.0)

    def read(self, count: float, now_s: float) -> float:
        if now_s - self._newer[0] >= self._window_s / 2:
            self._older, self._newer = self._newer, (now_s, count)
        since_s, before = self._older
        return (count - before) / (now_s - since_s) if now_s > since_s else 0.0


class Statistics:
    """librdkafka's newest report of itself; it is parsed only when somebody asks."""

    def __init__(self) -> None:
        self._text = "{}"
        self._parsed: tuple[str, dict[str, Any]] = ("{}", {})

    def __call__(self, text: str) -> None:
        """The callback that librdkafka reports to."""
        self._text = text

    def read(self) -> dict[str, Any]:
        text = self._text
        if self._parsed[0] is not text:
            self._parsed = (text, json.loads(text))
        return self._parsed[1]

    def brokers(self) -> list[dict[str, Any]]:
        return list(self.read().get("brokers", {}).values())

    def latency_ms(self) -> float:
        """Mean round trip of requests to all brokers, weighted by their number."""
        windows = [broker.get("rtt", {}) for broker in self.brokers()]
        count = sum(window.get("cnt", 0) for window in windows)
        total_us = sum(window.get("sum", 0) for window in windows)
        return total_us / count / 1000 if count else 0.0


Sample = tuple[str, str, str, float]  # name, kind, help, value


def exposition(samples: Iterable[Sample], labels: str) -> str:
    """Prometheus text, version 0.0.4.

    >>> print(exposition([("penstock_sent_total", "counter", "Messages.", 3)], 'client="a"'), end="")
    # HELP penstock_sent_total Messages.
    # TYPE penstock_sent_total counter
    penstock_sent_total{client="a"} 3
    """
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name}{{{labels}}} {_value(value)}\n"
        for name, kind, text, value in samples
    )


def _value(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)


def client_label(name: str) -> str:
    escaped = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'client_id="{escaped}"'


class _Metrics:
    def __init__(self, client_id: str, statistics: Statistics) -> None:
        self._label = client_label(client_id)
        self._statistics = statistics
        self._rates: dict[str, Rate] = {}
        self._made_s = time.monotonic()

    def _rate(self, name: str, count: float) -> float:
        now_s = time.monotonic()
        return self._rates.setdefault(name, Rate(self._made_s)).read(count, now_s)


class ProducerMetrics(_Metrics):
    """A producer's counts, rates a second, buffer and latency."""

    def __init__(
        self,
        client_id: str,
        statistics: Statistics,
        counts: Any,
        queued: Callable[[], int],
        buffer_bytes: int,
    ) -> None:
        super().__init__(client_id, statistics)
        self._counts = counts
        self._queued = queued
        self._buffer_bytes = buffer_bytes

    @property
    def delivered(self) -> int:
        """Messages that the broker has acknowledged."""
        return int(self._counts.delivered)

    @property
    def errors(self) -> int:
        """Messages that were given up."""
        return int(self._counts.failed)

    @property
    def dropped(self) -> int:
        """Messages that a full buffer turned away (on_full='drop')."""
        return int(self._counts.dropped)

    @property
    def sent(self) -> int:
        """Messages handed to `send` so far, still buffered ones included."""
        return self.delivered + self.errors + self._queued()

    @property
    def retries(self) -> int:
        """Requests that were sent again."""
        return sum(int(broker.get("txretries", 0)) for broker in self._statistics.brokers())

    @property
    def send_rate(self) -> float:
        return self._rate("sent", self.sent)

    @property
    def error_rate(self) -> float:
        return self._rate("errors", self.errors)

    @property
    def retry_rate(self) -> float:
        return self._rate("retries", self.retries)

    @property
    def buffer_available_bytes(self) -> int:
        used = int(self._statistics.read().get("msg_size", 0))
        return max(0, self._buffer_bytes - used)

    @property
    def request_latency_ms(self) -> float:
        """Mean round trip to the brokers."""
        return self._statistics.latency_ms()

    def prometheus(self) -> str:
        """All of them, for a /metrics page of the application."""
        return exposition(
            [
                ("penstock_producer_sent_total", "counter", "Messages handed to send.", self.sent),
                ("penstock_producer_delivered_total", "counter", "Messages acknowledged.", self.delivered),
                ("penstock_producer_errors_total", "counter", "Messages given up.", self.errors),
                ("penstock_producer_dropped_total", "counter", "Messages a full buffer turned away.", self.dropped),
                ("penstock_producer_retries_total", "counter", "Requests sent again.", self.retries),
                ("penstock_producer_buffer_available_bytes", "gauge", "Room in the buffer.", self.buffer_available_bytes),
                ("penstock_producer_request_latency_ms", "gauge", "Mean round trip.", self.request_latency_ms),
            ],
            self._label,
        )  # fmt: skip


class ConsumerMetrics(_Metrics):
    """A consumer's counts, rates a second, lag and latencies. The Consumer adds to the counters in place."""

    def __init__(
        self, client_id: str, statistics: Statistics, counts: Any, lag: Callable[[], dict[Any, int]]
    ) -> None:
        super().__init__(client_id, statistics)
        self._counts = counts
        self._lag = lag
        self.commits = 0
        self.commit_errors = 0
        self.rebalances = 0
        self.commit_latency_ms = 0.0  # of the newest commit that was waited for

    @property
    def received(self) -> int:
        """Messages handed out so far."""
        return int(self._counts.received)

    @property
    def receive_rate(self) -> float:
        return self._rate("received", self.received)

    @property
    def lag(self) -> int:
        """Messages between this consumer and the ends of its partitions. Asks the brokers."""
        return sum(self._lag().values())

    def _lag_or_nan(self) -> float:
        """A page of metrics is wanted most when the brokers do not answer."""
        try:
            return self.lag
        except PenstockError:
            return math.nan

    @property
    def fetch_latency_ms(self) -> float:
        """Mean round trip to the brokers; a fetch with nothing to bring waits at the broker."""
        return self._statistics.latency_ms()

    def prometheus(self) -> str:
        """All of them, for a /metrics page of the application."""
        return exposition(
            [
                ("penstock_consumer_received_total", "counter", "Messages handed out.", self.received),
                ("penstock_consumer_commits_total", "counter", "Commits done.", self.commits),
                ("penstock_consumer_commit_errors_total", "counter", "Commits refused.", self.commit_errors),
                ("penstock_consumer_rebalances_total", "counter", "Assignments that changed.", self.rebalances),
                ("penstock_consumer_lag", "gauge", "Messages behind the ends of the partitions.", self._lag_or_nan()),
                ("penstock_consumer_fetch_latency_ms", "gauge", "Mean round trip.", self.fetch_latency_ms),
                ("penstock_consumer_commit_latency_ms", "gauge", "Newest commit.", self.commit_latency_ms),
            ],
            self._label,
        )  # fmt: skip
