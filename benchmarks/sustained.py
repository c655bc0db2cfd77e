"""Does writing for minutes hold up others? `make bench B=sustained`.

A generator writes as fast as the broker takes it, past the page cache's dirty limits, bounded on disk by
`retention.bytes`. Meanwhile two other connections send a small request every few milliseconds, by the clock: a produce
of 1 KB to another topic, and an ApiVersions, which needs no disk. The longest answer is the longest stall.
"""

import gc
import select
import socket
import threading
import time
from typing import Final

from benchmarks.calls import connect
from benchmarks.frames import batch_of, frame, produce_frame
from benchmarks.raw import Outcome, Plan, generate
from benchmarks.rig import (
    parser,
    percentiles,
    port_of,
    print_heading,
    print_machine,
    print_row,
    rss_mb,
    running_broker,
    topic,
)
from penstock.testing import Broker
from penstock.wire.framing import FrameDecoder
from penstock.wire.messages.api_versions import ApiVersionsRequest

TARGET_MS: Final = 100
_INTERVAL_S: Final = 0.005
_MAX_FRAME_BYTES: Final = 1 << 20
_SETTINGS: Final = {"log.retention.check.interval.ms": 1000}


class Probe:
    """Sends the same request on a schedule; latency counts from when it was due."""

    def __init__(self, name: str, sock: socket.socket, request: bytes) -> None:
        self.name = name
        self.socket = sock
        self.latencies_s: list[float] = []
        self._request = request
        self._due_s: list[float] = []
        self._frames = FrameDecoder(_MAX_FRAME_BYTES)

    def send(self, due_s: float) -> None:
        self._due_s.append(due_s)
        self.socket.sendall(self._request)

    def receive(self, now_s: float) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise SystemExit(f"the broker closed the connection of probe {self.name}")
        for _ in self._frames.feed(data):
            self.latencies_s.append(now_s - self._due_s[len(self.latencies_s)])

    @property
    def is_answered(self) -> bool:
        return len(self.latencies_s) == len(self._due_s)


def probe_while(writer: threading.Thread, probes: list[Probe]) -> list[float]:
    """Probe until the writer ends and all is answered; how late each wake-up of this very loop was."""
    late_s: list[float] = []
    due_s = time.monotonic()
    sockets = [probe.socket for probe in probes]
    while writer.is_alive() or not all(probe.is_answered for probe in probes):
        now_s = time.monotonic()
        if now_s >= due_s and writer.is_alive():
            late_s.append(now_s - due_s)
            for probe in probes:
                probe.send(due_s)
            due_s += _INTERVAL_S
        ready, _, _ = select.select(sockets, [], [], max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        for probe in probes:
            if probe.socket in ready:
                probe.receive(now_s)
    return late_s


def run(broker: Broker, seconds: float, retained_bytes: int, batch_bytes: int) -> None:
    settings = {"retention.bytes": retained_bytes // 2, "segment.bytes": 128 << 20}
    with topic(broker, 2, settings) as loaded, topic(broker, 1) as probed:
        port, now_ms = port_of(broker), time.time_ns() // 1_000_000
        plan = Plan(
            port=port,
            broker_pid=broker.pid,
            topic=loaded,
            partitions=2,
            message_bytes=1000,
            batch_bytes=batch_bytes,
            now_ms=now_ms,
            seconds=seconds,
            max_bytes=1 << 50,
        )
        outcomes: list[Outcome] = []
        writer = threading.Thread(target=lambda: outcomes.append(generate(plan)))
        probes = [
            Probe(
                "produce 1 KB", connect(port), produce_frame(probed, 0, batch_of(1000, 1, now_ms))
            ),
            Probe("ApiVersions", connect(port), frame(ApiVersionsRequest(), 0)),
        ]
        writer.start()
        late_s = probe_while(writer, probes)
        if not outcomes:
            raise SystemExit("the generator failed; its reason is above")
        report(outcomes[0], probes, late_s, rss_mb(broker.pid))


def report(outcome: Outcome, probes: list[Probe], late_s: list[float], memory_mb: float) -> None:
    print(
        f"{outcome.produced_bytes / 1e9:.1f} GB in {outcome.seconds:.0f} s "
        f"({outcome.produced_bytes / outcome.seconds / 1e6:,.0f} MB/s), broker CPU "
        f"{outcome.broker.share:.0%}, resident memory at the end {memory_mb:.0f} MB\n"
    )
    print_heading(
        "probe", "requests", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", f"< {TARGET_MS} ms"
    )
    for probe in probes:
        points = [1000 * point for point in percentiles(probe.latencies_s, 0.5, 0.99, 0.999, 1.0)]
        over = sum(latency * 1000 >= TARGET_MS for latency in probe.latencies_s)
        print_row(
            probe.name,
            len(probe.latencies_s),
            *(f"{point:.2f}" for point in points),
            f"missed {over} times" if over else "reached",
        )
    points = [1000 * point for point in percentiles(late_s, 0.5, 0.99, 0.999, 1.0)]
    print_row("(the probe's own lateness)", len(late_s), *(f"{point:.2f}" for point in points), "")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument(
        "--retain-gb", type=float, default=4.0, help="data kept on disk at most, about"
    )
    options.add_argument("--batch-kb", type=float, default=64.0)
    arguments = options.parse_args()
    gc.disable()
    print_machine()
    with running_broker(_SETTINGS, data=arguments.data) as broker:
        run(
            broker,
            arguments.seconds,
            int(arguments.retain_gb * 1e9),
            int(arguments.batch_kb * 1000),
        )


if __name__ == "__main__":
    main()
