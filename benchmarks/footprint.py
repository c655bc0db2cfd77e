"""How soon a broker is there, and how much room it takes: `make bench B=footprint`.

Start-up is from the start of the process. Memory is resident memory of the broker's process; what the kernel keeps for
its sockets is not in it.
"""

import resource
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.calls import connect, exchange
from benchmarks.frames import batch_of, frame, produce_frame
from benchmarks.rig import (
    LOAD_CORES,
    on_cores,
    parser,
    port_of,
    print_heading,
    print_machine,
    print_row,
    rss_mb,
    running_broker,
    start,
    stop,
)
from penstock.testing import Broker
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

_STARTS: Final = 5
_TOPIC_PARTITIONS: Final = 1000
_SPARE_FILES: Final = 100
_WRITTEN_MAX: Final = 20_000  # more partitions than this are only created
_API_VERSIONS: Final = frame(ApiVersionsRequest(), 0)


def start_up(data: str | None) -> None:
    """A process of its own, on an empty directory: to its ready line, and to the first acknowledgement."""
    ready_s, acknowledged_s, memory_mb = [], [], []
    for _ in range(_STARTS):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=data) as home:
            begun_s = time.monotonic()
            broker = start(Broker(subprocess=True, data_dir=Path(home) / "data"))
            ready_s.append(time.monotonic() - begun_s)
            first_message(broker)
            acknowledged_s.append(time.monotonic() - begun_s)
            memory_mb.append(rss_mb(broker.pid))
            broker.close()
    print_row("process: start to ready line", *_milliseconds(ready_s), "1000 ms")
    print_row("process: start to first acknowledged message", *_milliseconds(acknowledged_s), "")
    print_row("resident memory, empty", f"{min(memory_mb):.1f} MB", f"{max(memory_mb):.1f} MB", "")


def first_message(broker: Broker) -> None:
    """To a topic that this request creates."""
    with connect(port_of(broker)) as sock:
        topic = MetadataRequestTopic(name="first")
        exchange(sock, frame(MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 9))
        batch = batch_of(100, 1, time.time_ns() // 1_000_000)
        exchange(sock, produce_frame("first", 0, batch))


def in_process() -> None:
    """`penstock.testing.Broker()` in this process. The first start pays for the imports."""
    times_s = []
    for _ in range(1 + _STARTS):
        begun_s = time.monotonic()
        broker = Broker().start()
        times_s.append(time.monotonic() - begun_s)
        broker.close()
    print_row("in this process: first start, with imports", f"{1000 * times_s[0]:.0f} ms", "", "")
    print_row("in this process: later starts", *_milliseconds(times_s[1:]), "100 ms")


def _milliseconds(seconds: list[float]) -> tuple[str, str]:
    return f"{1000 * statistics.median(seconds):.0f} ms", f"{1000 * max(seconds):.0f} ms"


def partitions(count: int, data: str | None) -> None:
    """Created, written to once each, and after a clean restart."""
    with running_broker(data=data) as broker:
        empty_mb = rss_mb(broker.pid)
        begun_s = time.monotonic()
        topics = [
            broker.create_topic(f"t{number}", partitions=_TOPIC_PARTITIONS)
            for number in range(count // _TOPIC_PARTITIONS)
        ]
        created_s = time.monotonic() - begun_s
        created_mb = rss_mb(broker.pid)
        begun_s = time.monotonic()
        if count <= _WRITTEN_MAX:
            write_to_each(broker, topics)
        written_s = time.monotonic() - begun_s
        written_mb = rss_mb(broker.pid)
        stopped_s = stop(broker)
        begun_s = time.monotonic()
        start(broker)
        print_row(
            f"{count:,}",
            f"{created_s:.1f} s",
            f"{empty_mb:.0f} → {created_mb:.0f} MB ({1e3 * (created_mb - empty_mb) / count:.2f} KB)",
            *(
                (
                    f"{written_s:.1f} s",
                    f"{written_mb:.0f} MB ({1e3 * (written_mb - empty_mb) / count:.2f} KB)",
                )
                if count <= _WRITTEN_MAX
                else ("not written to", "")
            ),
            f"{stopped_s:.1f} s",
            f"{time.monotonic() - begun_s:.2f} s",
            f"{rss_mb(broker.pid):.0f} MB",
        )


def write_to_each(broker: Broker, topics: list[str]) -> None:
    """One message to every partition: its log is opened."""
    batch = batch_of(100, 1, time.time_ns() // 1_000_000)
    with connect(port_of(broker)) as sock:
        for topic in topics:
            for partition in range(_TOPIC_PARTITIONS):
                exchange(sock, produce_frame(topic, partition, batch))


def idle_connections(count: int, data: str | None) -> None:
    """Each has asked ApiVersions once and is silent since."""
    allowed = _raise_file_limit(count + _SPARE_FILES) - _SPARE_FILES
    with running_broker(data=data) as broker:
        before_mb = rss_mb(broker.pid)
        sockets: list[socket.socket] = []
        begun_s = time.monotonic()
        for _ in range(min(count, allowed)):
            sockets.append(connect(port_of(broker)))
            exchange(sockets[-1], _API_VERSIONS)
        opened_s = time.monotonic() - begun_s
        after_mb = rss_mb(broker.pid)
        with connect(port_of(broker)) as sock:
            begun_s = time.monotonic()
            exchange(sock, _API_VERSIONS)
            answer_ms = 1000 * (time.monotonic() - begun_s)
        print_row(
            f"{len(sockets):,}" + ("" if allowed >= count else f" (of {count:,}: file limit)"),
            f"{before_mb:.1f} → {after_mb:.1f} MB",
            f"{1e3 * (after_mb - before_mb) / len(sockets):.2f} KB",
            f"{len(sockets) / opened_s:,.0f}",
            f"{answer_ms:.2f} ms",
        )
        for one in sockets:
            one.close()


def _raise_file_limit(wanted: int) -> int:
    """As far as this process may; what it has then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--partitions", type=int, nargs="*", default=[10_000])
    options.add_argument("--connections", type=int, default=10_000)
    arguments = options.parse_args()
    print_machine()
    with on_cores(LOAD_CORES):
        print_heading("start", "median", "worst", "target")
        start_up(arguments.data)
        in_process()
        print()
        print_heading(
            "partitions",
            "created in",
            "resident memory (each)",
            "one message each",
            "then",
            "stop",
            "start again",
            "then",
        )
        for count in arguments.partitions:
            partitions(count, arguments.data)
        print()
        print_heading("idle connections", "resident memory", "each", "opened/s", "next answer")
        idle_connections(arguments.connections, arguments.data)


if __name__ == "__main__":
    main()
