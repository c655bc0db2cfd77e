"""What a log costs per append and per read, in microseconds: `python -m benchmarks.storage_log [directory]`."""

import gc
import os
import sys
from collections.abc import Callable
from struct import Struct
from tempfile import TemporaryDirectory
from time import perf_counter

from penstock.model.configs import TopicConfig
from penstock.model.ids import TopicId
from penstock.records.batch import HEADER_SIZE, renew_checksum
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.files import OpenFiles
from penstock.storage.log import Log

NOW_MS = 1_700_000_000_000
BATCHES = 2_000
ROUNDS = 25
TOGETHER = 4  # batches of a run
_BASE_OFFSET, _SEQUENCE = Struct(">q"), Struct(">i")
_SEQUENCE_POSITION = 53


def new_log(path: str, number: int) -> Log:
    return Log(OpenFiles(), f"{path}/t", number, TopicId(bytes(16)), TopicConfig())


def batches(size_bytes: int, producer_id: int) -> list[memoryview]:
    """In sequence, if the producer is one."""
    value = bytes(size_bytes - HEADER_SIZE - 12)
    epoch = 0 if producer_id >= 0 else -1
    made = []
    for number in range(BATCHES):
        batch = build_batch(
            [Record(0, NOW_MS, b"k", value)], producer_id=producer_id, producer_epoch=epoch
        )
        if producer_id >= 0:
            _SEQUENCE.pack_into(batch, _SEQUENCE_POSITION, number)
            renew_checksum(memoryview(batch))
        made.append(memoryview(batch))
    return made


def best_us(run: Callable[[int], float], rounds: int = ROUNDS) -> float:
    """The quickest of some rounds, each of which times itself."""
    return min(run(number) for number in range(rounds)) / BATCHES * 1e6


def timed(action: Callable[[], None]) -> float:
    gc.disable()
    start = perf_counter()
    action()
    taken = perf_counter() - start
    gc.enable()
    return taken


def write_us(path: str, size_bytes: int) -> float:
    """The system call alone."""
    data, pwrite = memoryview(bytearray(size_bytes)), os.pwrite

    def run(number: int) -> float:
        fd = os.open(f"{path}/{number}", os.O_RDWR | os.O_CREAT)
        taken = timed(lambda: [pwrite(fd, data, n * size_bytes) for n in range(BATCHES)].clear())
        os.close(fd)
        os.unlink(f"{path}/{number}")
        return taken

    return best_us(run)


def append_us(
    path: str, size_bytes: int, producer_id: int = -1, *, together: bool = False
) -> float:
    made = batches(size_bytes, producer_id)
    runs = [made[number : number + TOGETHER] for number in range(0, BATCHES, TOGETHER)]

    def run(number: int) -> float:
        log = new_log(path, number)
        for batch in made:
            _BASE_OFFSET.pack_into(batch, 0, 0)

        def appends() -> None:
            for batch in made:
                log.append_as_leader(batch, leader_epoch=3, now_ms=NOW_MS)

        def appends_together() -> None:
            for batch in runs[0]:  # the first of a log goes by itself
                log.append_as_leader(batch, leader_epoch=3, now_ms=NOW_MS)
            for each in runs[1:]:
                assert log.append_run(each, leader_epoch=3, now_ms=NOW_MS)

        taken = timed(appends_together if together else appends)
        log.abandon()
        os.unlink(f"{log.path}/{0:020d}.log")
        return taken

    return best_us(run)


def read_us(log: Log, offset: int, max_bytes: int, upto_offset: int) -> float:
    def reads() -> None:
        for _ in range(BATCHES):
            log.read(offset, max_bytes, upto_offset=upto_offset)

    return best_us(lambda _: timed(reads), rounds=5)


def main() -> None:
    where = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm"
    with TemporaryDirectory(dir=where) as path:
        for size_bytes in (1024, 16 << 10, 64 << 10):
            write = write_us(path, size_bytes)
            plain = append_us(path, size_bytes)
            idempotent = append_us(path, size_bytes, producer_id=7)
            together = append_us(path, size_bytes, together=True)
            print(
                f"append {size_bytes:6} B: {plain:.2f} (write {write:.2f}, log {plain - write:.2f}),"
                f" idempotent +{idempotent - plain:.2f}, {TOGETHER} together {together:.2f} each"
            )
        log = new_log(path, 1_000)
        for _ in range(10):
            for batch in batches(1024, -1):
                log.append_as_leader(batch, leader_epoch=3, now_ms=NOW_MS)
        end = log.next_offset
        print(f"read at the end: {read_us(log, end - 1, 1 << 20, end):.2f}")
        print(f"read 50 batches before it: {read_us(log, end - 50, 10_000, end - 1):.2f}")
        print(f"read in the growing segment: {read_us(log, 501, 1 << 20, end):.2f}")
        log.roll()
        print(f"read in a closed segment: {read_us(log, 501, 1 << 20, end):.2f}")
        print(f"a log never written: {sys.getsizeof(new_log(path, 0))} B")


if __name__ == "__main__":
    main()
