"""A slice stays readable whatever becomes of its file, and knows when what it meant is gone."""

import errno
import os
from pathlib import Path

import pytest

from penstock.model.configs import TopicConfig
from penstock.model.errors import StorageFault
from penstock.storage.files import FileSlice, OpenFiles, SegmentFile, is_resident, warm
from tests.unit.storage.logs import fill, new_log, put, scratch


def file_of(path: Path, data: bytes, limit: int = 10) -> SegmentFile:
    file = SegmentFile(OpenFiles(limit), str(path), 0, ".log")
    file.create()
    file.append(data)
    return file


def test_a_slice_is_readable_after_its_file_is_removed_renamed_or_closed(tmp_path: Path) -> None:
    for number, change in enumerate(("unlink", "close", "rename")):
        directory = tmp_path / str(number)
        directory.mkdir()
        file = file_of(directory, b"hello, world")
        piece = FileSlice(file, 7, 5)
        file.rename(".gone") if change == "rename" else getattr(file, change)()
        assert (piece.read(), len(piece), piece.is_stale) == (b"world", 5, False)


def test_a_slice_holds_its_descriptor_beyond_the_limit_and_lets_it_go(tmp_path: Path) -> None:
    files = OpenFiles(1)
    first = SegmentFile(files, str(tmp_path), 0, ".log")
    first.create()
    first.append(b"first")
    piece = FileSlice(first, 0, 5)
    fd = piece.fileno()
    second = SegmentFile(files, str(tmp_path), 1, ".log")
    second.create()

    assert first.handle is None, "the second took its place"
    assert (piece.fileno(), piece.read()) == (fd, b"first")
    piece.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_slice_of_bytes_that_were_cut_off_is_stale_and_others_are_not(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"0123456789")
    kept, cut, straddling = FileSlice(file, 0, 5), FileSlice(file, 6, 4), FileSlice(file, 4, 3)
    file.truncate(5)
    file.append(b"other bytes")
    fresh = FileSlice(file, 6, 4)

    assert [piece.is_stale for piece in (kept, cut, straddling, fresh)] == [
        False,
        True,
        True,
        False,
    ]
    file.truncate(8)
    assert [piece.is_stale for piece in (kept, fresh)] == [False, True]


def test_reading_more_than_there_is_is_a_fault(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"short")
    with pytest.raises(StorageFault, match="5 of 9 bytes at 0 are there"):
        FileSlice(file, 0, 9).read()


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    piece = FileSlice(file_of(tmp_path, bytes(300_000)), 0, 300_000)
    warm(piece)
    assert is_resident(piece)


def test_a_file_system_that_cannot_say_what_is_in_memory_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = FileSlice(file_of(tmp_path, bytes(300_000)), 0, 300_000)
    asked = []

    def refuse(*arguments: object) -> int:
        asked.append(arguments)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert [is_resident(piece) for _ in range(3)] == [True, True, True]
    assert len(asked) == 1


def test_a_file_that_vanished_is_a_fault_and_is_not_made_anew(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"data")
    file.close()
    os.unlink(file.path)
    with pytest.raises(StorageFault, match="cannot be opened"):
        file.read_at(0, 4)
    assert os.listdir(tmp_path) == []


def test_readers_of_a_log_are_not_disturbed_by_deletion_and_are_told_of_a_cut() -> None:
    with scratch() as path:
        log = new_log(path)
        fill(log, 30)
        old = log.read(0, 1 << 20, upto_offset=30).slices[0]
        before = old.read()
        log.delete_records_before(30)
        assert (old.read(), old.is_stale) == (before, False)

        log = new_log(f"{path}/other", TopicConfig())
        fill(log, 30)
        tail = log.read(20, 1 << 20, upto_offset=30).slices[0]
        head = log.read(0, 300, upto_offset=30).slices[0]
        log.truncate_to(15)
        put(log, b"other", epoch=2)
        assert (tail.is_stale, head.is_stale) == (True, False)
