"""Room that is set aside while there is enough, and given up when there is none."""

from pathlib import Path

import pytest

from penstock.model.errors import StorageFault
from penstock.storage import ballast as ballast_module
from penstock.storage.ballast import BALLAST, Ballast
from penstock.storage.usage import Room

SIZE_BYTES = 64 << 10


def test_the_room_is_really_taken_and_really_given_back(tmp_path: Path) -> None:
    ballast = Ballast(str(tmp_path), SIZE_BYTES)
    ballast.take()
    assert (tmp_path / BALLAST).stat().st_blocks * 512 >= SIZE_BYTES
    ballast.take()
    ballast.release()
    assert not (tmp_path / BALLAST).exists()
    ballast.release()


def test_nothing_is_taken_of_the_last_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast = Ballast(str(tmp_path), SIZE_BYTES)
    monkeypatch.setattr(ballast_module, "room", lambda _: Room(1 << 30, 2 * SIZE_BYTES - 1))
    ballast.take()
    assert not (tmp_path / BALLAST).exists()


def test_where_it_cannot_be_there_it_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ballast(str(tmp_path), 0).take()
    assert not (tmp_path / BALLAST).exists()
    missing = Ballast(str(tmp_path / "gone"), SIZE_BYTES)
    missing.take()
    missing.release()

    def fail(_: str) -> Room:
        raise StorageFault("it smokes")

    monkeypatch.setattr(ballast_module, "room", fail)
    Ballast(str(tmp_path), SIZE_BYTES).take()
    assert not (tmp_path / BALLAST).exists()
