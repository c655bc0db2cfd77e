"""Fetched batches to Arrow: how many records and bytes a core opens. `python -m benchmarks.decode`"""

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from subprocess import run
from time import process_time
from timeit import repeat

from penstock.records.builder import build_batch
from penstock.records.columns import ColumnDecoder, Wanted
from penstock.records.compression import Codec
from penstock.records.record import Header, Record, decode_records
from penstock.spark.arrow import COLUMNS, DEFAULT_COLUMNS, ArrowRows, wanted

NOW_MS = 1_700_000_000_000
FETCH_BYTES = 4 << 20
ROUNDS = 7
HEADERS: tuple[Header, ...] = (("trace", b"0123456789abcdef"), ("kind", b"order"))


def best_seconds(call: Callable[[], object], number: int = 5) -> float:
    """CPU time: the machine is shared."""
    return min(repeat(call, timer=process_time, number=number, repeat=ROUNDS)) / number


def fetch_of(
    value_bytes: int,
    *,
    batch_bytes: int = 64 << 10,
    key: bool = False,
    headers: tuple[Header, ...] = (),
    codec: Codec = Codec.NONE,
) -> tuple[memoryview, int, int]:
    """What a fetch brings; how many records that is, and how many bytes of values."""
    dice = Random(1)
    values = [
        dice.randbytes(value_bytes // 2) + bytes(value_bytes - value_bytes // 2) for _ in range(100)
    ]
    data, offset, each = bytearray(), 0, max(1, batch_bytes // (value_bytes + 10))
    while offset * value_bytes < FETCH_BYTES:
        records = [
            Record(i, NOW_MS + i, b"key-%08d" % i if key else None, values[i % 100], headers)
            for i in range(offset, offset + each)
        ]
        data += build_batch(records, base_offset=offset, codec=codec)
        offset += each
    return memoryview(bytes(data)), offset, offset * value_bytes


def to_arrow(fetch: memoryview, columns: tuple[str, ...] = DEFAULT_COLUMNS) -> Callable[[], int]:
    decoder = ColumnDecoder(wanted(columns), read_committed=True)
    arrow = ArrowRows("orders", 0, columns)
    return lambda: sum(arrow.batch(rows).num_rows for rows in decoder.decode(fetch, from_offset=0))


def report(label: str, call: Callable[[], int], count: int, size_bytes: int) -> None:
    assert call() == count
    seconds = best_seconds(call)
    print(f"  {label:34}{count / seconds / 1e6:>10.1f}{size_bytes / seconds / 1e9:>10.2f}")


def bench_shapes() -> None:
    print(f"{'to Arrow, 64 KiB batches':36}{'M rec/s':>10}{'GB/s':>10}")
    for size in (20, 100, 1_000, 10_000):
        fetch, count, size_bytes = fetch_of(size)
        report(f"{size} B", to_arrow(fetch), count, size_bytes)
    fetch, count, size_bytes = fetch_of(100, key=True)
    report("100 B and key", to_arrow(fetch), count, size_bytes)
    fetch, count, size_bytes = fetch_of(100, key=True, headers=HEADERS)
    report("100 B, key, 2 headers not wanted", to_arrow(fetch), count, size_bytes)
    report("100 B, key, 2 headers", to_arrow(fetch, COLUMNS), count, size_bytes)
    fetch, count, size_bytes = fetch_of(1_000)
    report("1000 B, offsets only", to_arrow(fetch, ("offset",)), count, size_bytes)


def bench_batches() -> None:
    print(f"{'100 B and key, by size of batch':36}{'M rec/s':>10}{'GB/s':>10}")
    for batch_bytes in (100, 1 << 10, 16 << 10, 64 << 10, 1 << 20):
        fetch, count, size_bytes = fetch_of(100, batch_bytes=batch_bytes, key=True)
        report(f"{batch_bytes} bytes", to_arrow(fetch), count, size_bytes)


def bench_codecs() -> None:
    print(f"{'100 B and key, by codec':36}{'M rec/s':>10}{'GB/s':>10}")
    for codec in Codec:
        fetch, count, size_bytes = fetch_of(100, key=True, codec=codec)
        report(codec.name.lower(), to_arrow(fetch), count, size_bytes)


def bench_steps() -> None:
    """Where the time goes, in nanoseconds a record; and the plain decoder beside it."""
    print(f"{'ns a record':36}{'index':>10}{'+ columns':>10}{'+ Arrow':>10}{'plain':>10}")
    for size in (100, 1_000):
        fetch, count, _ = fetch_of(size, key=True)
        first = memoryview(build_batch([Record(i, 0, b"k", bytes(size)) for i in range(200)]))
        calls = (
            partial(_consume, fetch, Wanted(False, False)),
            partial(_consume, fetch, Wanted()),
            to_arrow(fetch),
        )
        times = [best_seconds(call) for call in calls]
        plain = best_seconds(partial(decode_records, first)) / 200
        figures = [*(seconds / count for seconds in times), plain]
        print(f"  {size:>5} B and key{'':20}" + "".join(f"{s * 1e9:>10.1f}" for s in figures))


def _consume(fetch: memoryview, asked: Wanted) -> int:
    decoder = ColumnDecoder(asked, read_committed=True)
    return sum(rows.count for rows in decoder.decode(fetch, from_offset=0))


def bench_start() -> None:
    """CPU seconds of a process that imports, and of one that decodes; the kernels are in the cache by now."""
    for label, code in (
        ("import columns", "import penstock.records.columns"),
        ("first decoder, from the cache", "import penstock.records.column_kernels"),
    ):
        timed = f"from time import process_time as t; a = t(); {code}; print(t() - a)"
        done = run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
        print(f"  {label:34}{float(done.stdout):>10.2f} s")


if __name__ == "__main__":
    bench_shapes()
    bench_batches()
    bench_codecs()
    bench_steps()
    bench_start()
