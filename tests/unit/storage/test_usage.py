from pathlib import Path

import pytest

from penstock.model.errors import StorageFault
from penstock.storage.usage import log_size_bytes, room


def test_only_segments_count_for_the_size_of_a_log(tmp_path: Path) -> None:
    for name, size in (("0.log", 10), ("5.log", 20), ("0.index", 100), ("producers.snapshot", 7)):
        (tmp_path / name).write_bytes(bytes(size))
    assert log_size_bytes(str(tmp_path)) == 30


def test_a_log_that_was_never_written_or_is_gone_has_no_size(tmp_path: Path) -> None:
    assert log_size_bytes(str(tmp_path / "absent")) == 0


def test_what_cannot_be_measured_is_a_fault_of_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(StorageFault, match="file: cannot be listed"):
        log_size_bytes(str(file))
    with pytest.raises(StorageFault, match="absent: cannot be measured"):
        room(str(tmp_path / "absent"))


def test_no_more_room_is_usable_than_there_is(tmp_path: Path) -> None:
    found = room(str(tmp_path))
    assert 0 <= found.usable_bytes <= found.total_bytes
