"""How much of the latency is not the broker's: `make bench B=floor`.

A relay that does next to nothing (receive, checksum, write, acknowledge, hand on to whoever waits; one reader, no checks, no
state) is measured beside Penstock, in turn, by the same load as in `latency`. What it needs is spent by the load itself, the kernel's wake-ups, and
the least that any broker in Python would do: nobody can be asked to be faster.
"""

import gc
import multiprocessing
import os
import select
import socket
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final

from benchmarks.frames import FETCH_VERSION, PRODUCE_VERSION
from benchmarks.latency import Case, RawLoad
from benchmarks.rig import (
    BROKER_CORES,
    parser,
    percentiles,
    port_of,
    print_heading,
    print_machine,
    print_row,
    running_broker,
    topic,
)
from penstock.records.batch import stamp, verify
from penstock.wire.api_keys import ApiKey
from penstock.wire.framing import FrameDecoder
from penstock.wire.header import decode_request_header
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire.schema import decode_for

_RATE: Final = 20_000
_LINGERS_MS: Final = (1, 5)
_PARTITIONS: Final = 4
_HEAD: Final = Struct(">ii")
_FLEXIBLE_HEAD: Final = Struct(">iib")
_SCRATCH_BYTES: Final = 1 << 20


class Relay:
    """Batches that come in on one connection go out on the other, through a file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0
        self._next_offsets: dict[int, int] = {}
        self._fresh: dict[int, list[tuple[int, int]]] = {}  # written and not handed on
        self._reader: tuple[socket.socket, int] | None = None  # waits, with that number
        self._topic = ""

    def take(self, frame: bytes, sock: socket.socket) -> None:
        view = memoryview(bytearray(frame))
        header, at = decode_request_header(view)
        if header.api_key == ApiKey.FETCH:
            self._reader = sock, header.correlation_id
        else:
            request, _ = decode_for(ProduceRequest, PRODUCE_VERSION)(view, at)
            sock.send(self._write(request, header.correlation_id))
        self._hand_on()

    def _write(self, request: ProduceRequest, number: int) -> bytes:
        self._topic = request.topic_data[0].name
        data = request.topic_data[0].partition_data[0]
        records, offset = data.records, self._next_offsets.get(data.index, 0)
        assert records is not None
        header = verify(records)
        stamp(records, offset, 0)
        os.pwrite(self._file, records, self._size)
        self._next_offsets[data.index] = offset + header.record_count
        self._fresh.setdefault(data.index, []).append((self._size, len(records)))
        self._size += len(records)
        done = PartitionProduceResponse(index=data.index, base_offset=offset)
        named = TopicProduceResponse(name=self._topic, partition_responses=[done])
        body = ProduceResponse(responses=[named]).encode(PRODUCE_VERSION)
        return _FLEXIBLE_HEAD.pack(len(body) + 5, number, 0) + body

    def _hand_on(self) -> None:
        if self._reader is None or not self._fresh:
            return
        (sock, number), self._reader = self._reader, None
        partitions = [
            PartitionData(
                partition_index=index,
                high_watermark=self._next_offsets[index],
                aborted_transactions=None,
                records=b"".join(os.pread(self._file, size, at) for at, size in pieces),
            )
            for index, pieces in self._fresh.items()
        ]
        self._fresh.clear()
        named = FetchableTopicResponse(topic=self._topic, partitions=partitions)
        body = FetchResponse(responses=[named]).encode(FETCH_VERSION)
        sock.send(_HEAD.pack(len(body) + 4, number) + body)


def relay(listener: socket.socket, directory: str | None) -> None:
    """Serves a producer and a consumer until one of them leaves."""
    os.sched_setaffinity(0, BROKER_CORES)
    gc.disable()
    scratch = memoryview(bytearray(_SCRATCH_BYTES))
    with tempfile.TemporaryFile(dir=directory) as file, select.epoll() as ready:
        passing = Relay(file.fileno())
        peers: dict[int, tuple[socket.socket, FrameDecoder]] = {}
        for _ in range(2):
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peers[sock.fileno()] = sock, FrameDecoder(_SCRATCH_BYTES)
            ready.register(sock.fileno(), select.EPOLLIN)
        while True:
            for fd, _ in ready.poll():
                sock, frames = peers[fd]
                count = sock.recv_into(scratch)
                if not count:
                    return
                for frame in frames.feed(scratch[:count]):
                    passing.take(frame, sock)


@contextmanager
def running_relay(directory: str | None) -> Iterator[int]:
    """Its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(
            target=relay, args=(listener, directory), daemon=True
        )
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()


def median_ms(values: list[float]) -> float:
    return percentiles(values, 0.5)[0] * 1000


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="of load for each run")
    options.add_argument("--turns", type=int, default=5, metavar="N", help="of each of the two")
    arguments = options.parse_args()
    gc.disable()
    print_machine()
    print_heading("1 KB messages/s", "linger", "relay, p50 ms", "Penstock, p50 ms", "ratio")
    with running_broker(data=arguments.data) as broker:
        for linger_ms in _LINGERS_MS:
            case = Case("raw", _RATE, linger_ms)
            least_ms, ours_ms = [], []
            for _ in range(arguments.turns):
                with running_relay(arguments.data) as port:
                    least = RawLoad(port, "floor", case, arguments.seconds, _PARTITIONS).run()
                with topic(broker, _PARTITIONS) as name:
                    ours = RawLoad(
                        port_of(broker), name, case, arguments.seconds, _PARTITIONS
                    ).run()
                least_ms.append(median_ms(least.delivered_s))
                ours_ms.append(median_ms(ours.delivered_s))
            ratios = [mine / other for mine, other in zip(ours_ms, least_ms, strict=True)]
            cells = (f"{statistics.median(it):.2f}" for it in (least_ms, ours_ms, ratios))
            print_row(f"{_RATE:,}", f"{linger_ms} ms", *cells)


if __name__ == "__main__":
    main()
