"""One round over files: what it reads, writes, and leaves behind when it fails."""

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from penstock.model.errors import StorageFault
from penstock.records.batch import parse_header
from penstock.records.compaction import AbortedRange
from penstock.records.compression import Codec
from penstock.storage import cleaner
from penstock.storage.cleaner import Job, Outcome, Pace, Source, clean, groups
from penstock.storage.swap import Swap
from tests.unit.records.histories import History, Step


def _job(directory: Path, *segments: list[tuple[bytes, bytes | None]], **changes: Any) -> Job:
    """Segment files with one batch per record, and the job to compact them all."""
    history, sources = History(), []
    for entries in segments:
        base_offset, first = history.next_offset, len(history.batches)
        for key, value in entries:
            history.append(Step(-1, False, None, Codec.NONE, [(key, value, 1)]))
        data = b"".join(history.batches[first:])
        _log(directory, base_offset).write_bytes(data)
        sources.append(Source(base_offset, history.next_offset, len(data)))
    fields: dict[str, Any] = {
        "directory": str(directory),
        "sources": tuple(sources),
        "first_dirty_offset": 0,
        "upto_offset": history.next_offset,
        "aborted": (),
        "producers": (),
        "epoch_ends": (),
        "now_ms": 1_000,
        "delete_retention_ms": 100,
        "segment_bytes": 1 << 20,
        "map_bytes": 1 << 20,
        "io_bytes_per_second": 1e300,
    }
    return Job(**fields | changes)


def _log(directory: Path, base_offset: int, suffix: str = "") -> Path:
    return directory / f"{base_offset:020d}.log{suffix}"


def _cleaned(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".cleaned"))


def test_a_round_leaves_cleaned_files_and_touches_no_other(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = clean(job)
    assert outcome.swaps == (Swap((0, 2), (0,)),)
    assert outcome.clean_upto_offset == 3
    assert outcome.read_bytes == sum(map(len, before.values()))
    cleaned = _log(tmp_path, 0, ".cleaned").read_bytes()
    assert outcome.written_bytes == len(cleaned)
    assert parse_header(cleaned).base_offset == 1
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert _cleaned(tmp_path) == [_log(tmp_path, 0, ".cleaned").name]


def test_batches_larger_than_what_is_read_at_once_are_read_whole(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"x" * 500), (b"b", b"y"), (b"a", b"z" * 700), (b"c", b"w" * 300)])
    with patch.object(cleaner, "_CHUNK_BYTES", 100):
        outcome = clean(job)
    data = _log(tmp_path, 0).read_bytes()
    first = parse_header(data).size_bytes
    assert _log(tmp_path, 0, ".cleaned").read_bytes() == data[first:]
    assert outcome.read_bytes == len(data)


@pytest.mark.parametrize("damage", ["cut", "magic", "length", "gone"])
def test_a_file_that_cannot_be_walked_ends_the_round_with_nothing_left(
    tmp_path: Path, damage: str
) -> None:
    job = _job(tmp_path, [(b"a", bytes(600_000))], [(b"b", bytes(600_000)), (b"a", b"2")])
    path = _log(tmp_path, 1)
    data = bytearray(path.read_bytes())
    second = parse_header(data).size_bytes
    if damage == "cut":
        data = data[:-1]
    elif damage == "magic":
        data[second + 16] = 1
    elif damage == "length":
        data[second + 8 : second + 12] = b"\0\0\xff\xff"
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    with pytest.raises((StorageFault, FileNotFoundError), match=path.name):
        clean(job)
    assert _cleaned(tmp_path) == []


def test_a_full_disk_ends_the_round_with_nothing_left(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", bytes(600_000))], [(b"a", bytes(600_000))])
    synced = []

    def fsync(fd: int) -> None:
        synced.append(fd)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with patch.object(os, "fsync", fsync), pytest.raises(OSError, match="No space"):
        clean(job)
    assert _cleaned(tmp_path) == []


def test_the_files_of_another_round_are_not_written_over(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"1"), (b"a", b"2")])
    _log(tmp_path, 0, ".cleaned").write_bytes(b"another worker's")
    with pytest.raises(FileExistsError):
        clean(job)


def test_segments_past_what_the_map_could_hold_are_not_rewritten(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")], map_bytes=200)
    outcome = clean(job)
    assert (outcome.swaps, outcome.clean_upto_offset) == ((), 1)
    assert _cleaned(tmp_path) == []


def test_a_group_spans_no_more_offsets_than_an_index_can_say(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"1")])
    far = 1 << 31
    sources = (
        Source(0, 1, 10),
        Source(1, far, 10),
        Source(far, far + 1, 10),
        Source(far + 1, far + 2, 10),
    )
    grouped = list(groups(job._replace(sources=sources), far + 2))
    assert [[source.base_offset for source in group] for group in grouped] == [
        [0, 1],
        [far, far + 1],
    ]


def test_a_group_is_no_larger_than_a_segment_unless_it_is_one(tmp_path: Path) -> None:
    job = _job(tmp_path, [(b"a", b"1")], segment_bytes=100)
    sources = tuple(Source(i, i + 1, size) for i, size in enumerate((60, 40, 1, 500, 99, 1)))
    grouped = list(groups(job._replace(sources=sources), 6))
    assert [[source.size_bytes for source in group] for group in grouped] == [
        [60, 40],
        [1],
        [500],
        [99, 1],
    ]


def test_jobs_and_outcomes_survive_json(tmp_path: Path) -> None:
    job = _job(
        tmp_path,
        [(b"a", b"1")],
        aborted=(AbortedRange(1, 2, 3),),
        producers=((1, 0, None), (2, 0, 7)),
    )
    again = Job.decode(json.loads(json.dumps(job)))
    assert again._replace(producers=job.producers) == job
    assert [tuple(producer) for producer in again.producers] == list(job.producers)
    outcome = Outcome((Swap((0, 1), (0,)),), 2, 3, 4, 5, 6)
    assert Outcome.decode(json.loads(json.dumps(outcome))) == outcome


def test_reading_and_writing_keep_to_a_rate() -> None:
    now, pauses = [100.0], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    pace = Pace(1_000, clock=lambda: now[0], pause=pause)
    pace.spend(500)
    pace.spend(250)
    now[0] += 10  # what was not spent is not saved up
    pace.spend(1_000)
    assert pauses == [0.5, 0.25, 1.0]
