"""Room that is set aside while there is enough, and given up when there is none."""

from pathlib import Path

import pytest

from penstock.model.errors import StorageFault
from penstock.storage import disk_reserve
from penstock.storage.disk_reserve import FILE, DiskReserve
from penstock.storage.usage import Room

SIZE_BYTES = 64 << 10


def test_the_room_is_really_taken_and_really_given_back(tmp_path: Path) -> None:
    reserve = DiskReserve(str(tmp_path), SIZE_BYTES)
    reserve.take()
    assert (tmp_path / FILE).stat().st_blocks * 512 >= SIZE_BYTES
    reserve.take()
    reserve.release()
    assert not (tmp_path / FILE).exists()
    reserve.release()


def test_nothing_is_taken_of_the_last_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = DiskReserve(str(tmp_path), SIZE_BYTES)
    monkeypatch.setattr(disk_reserve, "room", lambda _: Room(1 << 30, 2 * SIZE_BYTES - 1))
    reserve.take()
    assert not (tmp_path / FILE).exists()


def test_where_it_cannot_be_there_it_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskReserve(str(tmp_path), 0).take()
    assert not (tmp_path / FILE).exists()
    missing = DiskReserve(str(tmp_path / "gone"), SIZE_BYTES)
    missing.take()
    missing.release()

    def fail(_: str) -> Room:
        raise StorageFault("it smokes")

    monkeypatch.setattr(disk_reserve, "room", fail)
    DiskReserve(str(tmp_path), SIZE_BYTES).take()
    assert not (tmp_path / FILE).exists()
