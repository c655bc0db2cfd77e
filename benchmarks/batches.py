"""What a batch costs: checked on the way in, built, opened, and compacted. `python -m benchmarks.batches`"""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from timeit import repeat

from penstock.records.batch import CRC_START
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.crc32c import crc32c
from penstock.records.record import Record, decode_records
from penstock.records.validation import check_client_batch
from penstock.storage.cleaner import Job, Source, clean

NOW_MS = 1_700_000_000_000
ROUNDS = 5


def best_us(call: Callable[[], object], number: int) -> float:
    """CPU time: the machine is shared."""
    return min(repeat(call, timer=process_time, number=number, repeat=ROUNDS)) / number * 1e6


def batch_of(count: int, value_bytes: int, codec: Codec = Codec.NONE) -> bytearray:
    value = bytes(33 + i * 7 % 90 for i in range(value_bytes))
    records = [Record(i, NOW_MS, b"key-%d" % i, value) for i in range(count)]
    return build_batch(records, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)


def bench_check() -> None:
    print(f"{'check_client_batch':28}{'µs':>8}{'of it CRC':>11}")
    for size, count in ((1 << 10, 8), (16 << 10, 140), (64 << 10, 560), (1 << 20, 9_000)):
        view = memoryview(batch_of(count, 100))

        def check(view: memoryview = view) -> object:
            return check_client_batch(
                view, max_batch_bytes=2 << 20, now_ms=NOW_MS, after_max_ms=3_600_000
            )

        def checksum(view: memoryview = view) -> object:
            return crc32c(view[CRC_START:])

        number = 20_000 if size < 1 << 20 else 2_000
        print(
            f"  {len(view):>10} bytes{best_us(check, number):>20.2f}{best_us(checksum, number):>11.2f}"
        )


def bench_open() -> None:
    count = 1_000
    print(f"{'100 B records, M/s':28}{'build':>8}{'decode':>11}")
    for codec in Codec:
        batch = batch_of(count, 100, codec)
        records = decode_records(batch)
        build = best_us(lambda c=codec, r=records: build_batch(r, codec=c), 20)  # type: ignore[misc] # bound per turn
        decode = best_us(lambda b=batch: decode_records(b), 20)  # type: ignore[misc] # bound per turn
        print(f"  {codec.name.lower():26}{count / build:>8.2f}{count / decode:>11.2f}")


def bench_compaction() -> None:
    """Segments of a topic whose keys are written ten times each."""
    print(f"{'compaction':28}{'MB/s':>8}{'M rec/s':>11}{'CPU s':>8}")
    for value_bytes, codec in ((100, Codec.NONE), (100, Codec.ZSTD), (1_000, Codec.NONE)):
        with TemporaryDirectory() as directory:
            count = 400_000 if value_bytes == 100 else 100_000
            job = _written(directory, count, value_bytes, codec)
            started, cpu = perf_counter(), process_time()
            outcome = clean(job)
            seconds, cpu = perf_counter() - started, process_time() - cpu
            size = sum(source.size_bytes for source in job.sources)
            assert outcome.clean_upto_offset == count
            label = f"  {value_bytes} B, {codec.name.lower()}, {size >> 20} MB"
            print(
                f"{label:28}{size / seconds / 1e6:>8.1f}{count / seconds / 1e6:>11.2f}{cpu:>8.2f}"
            )


def _written(directory: str, count: int, value_bytes: int, codec: Codec) -> Job:
    value = os.urandom(value_bytes // 2) + bytes(value_bytes - value_bytes // 2)
    per_batch, keys, segment = 500, count // 10, count // 4
    sources = []
    for base in range(0, count, segment):
        batches = [
            build_batch(
                [
                    Record(i, NOW_MS, b"key-%d" % (i % keys), value)
                    for i in range(at, at + per_batch)
                ],
                base_offset=at,
                codec=codec,
            )
            for at in range(base, base + segment, per_batch)
        ]
        Path(directory, f"{base:020d}.log").write_bytes(b"".join(batches))
        sources.append(Source(base, base + segment, sum(map(len, batches))))
    return Job(
        directory=directory,
        sources=tuple(sources),
        first_dirty_offset=0,
        upto_offset=count,
        aborted=(),
        producers=(),
        epoch_ends=(),
        now_ms=NOW_MS,
        delete_retention_ms=86_400_000,
        segment_bytes=1 << 30,
        map_bytes=128 << 20,
        io_bytes_per_second=1e300,
    )


if __name__ == "__main__":
    bench_check()
    bench_open()
    bench_compaction()
