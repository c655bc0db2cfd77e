"""Local files are created atomically and once; moves and deletions may be repeated."""

from pathlib import Path

import pytest

from penstock.spark.jobs.files import LocalFiles, Stored, for_spark, is_local, normal


def test_a_file_is_created_once(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "a" / "b.json")
    assert files.create(path, "one")
    assert not files.create(path, "two")
    assert files.read(path) == "one"
    assert files.names(str(tmp_path / "a")) == ["b.json"]


def test_a_move_may_be_repeated(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / "from").write_text("x")
    for _ in range(2):
        files.move(str(tmp_path / "from"), str(tmp_path / "deep" / "to"))
    assert (tmp_path / "deep" / "to").read_text() == "x"


def test_a_deletion_may_be_repeated(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / "d" / "e").mkdir(parents=True)
    for _ in range(2):
        files.delete(str(tmp_path / "d"))
    (tmp_path / "f").write_text("")
    for _ in range(2):
        files.delete(str(tmp_path / "f"))
    assert list(tmp_path.iterdir()) == []


def test_only_visible_files_are_found(tmp_path: Path) -> None:
    for name in ("topic=a/x.parquet", "topic=a/.x.parquet.crc", "_penstock/y.parquet", "_SUCCESS"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12")
    assert LocalFiles().walk(str(tmp_path)) == [Stored("topic=a/x.parquet", 2)]
    assert LocalFiles().walk(str(tmp_path / "none")) == []
    assert LocalFiles().names(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("/a/./b", "/a/b"),
        ("file:///a%20b", "/a b"),
        ("s3a://bucket/t/", "s3a://bucket/t"),
    ],
)
def test_a_place_has_one_spelling(given: str, expected: str) -> None:
    assert normal(given) == expected
    assert is_local(expected) is not given.startswith("s3a")


def test_spark_is_told_whose_file_system_it_is() -> None:
    assert for_spark("/a b") == "file:/a b"
    assert for_spark("hdfs://n/a") == "hdfs://n/a"
