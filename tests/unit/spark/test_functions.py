"""What people hand to a job is looked at before Spark is started; what cannot be read is named."""

from pathlib import Path

import pytest

from penstock.spark.errors import BadOption, JobError
from penstock.spark.functions import check_files, chosen, sql_text


def test_sql_is_a_text_or_a_file_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("SELECT 1")
    assert sql_text("SELECT 2") == "SELECT 2"
    assert sql_text(str(tmp_path / "a.sql")) == "SELECT 1"


def test_files_that_are_not_there_are_named() -> None:
    check_files(None, None)
    check_files("SELECT 1", "json:loads")
    with pytest.raises(JobError, match=r"cannot read nope\.sql: No such file"):
        check_files("nope.sql", None)
    with pytest.raises(JobError, match=r"cannot read nope\.py: No such file"):
        check_files(None, "nope.py:clean")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(JobError, match=r"a\.sql: it is not UTF-8"):
        check_files(str(tmp_path / "a.sql"), None)


class Rows:
    def where(self, where: str) -> str:
        if "nope" in where:
            raise ValueError("there is no nope")
        return where


def test_a_condition_that_makes_no_sense_is_named() -> None:
    rows = Rows()
    assert chosen(rows, None) is rows
    assert chosen(rows, "a = 1") == "a = 1"
    with pytest.raises(BadOption, match="--where 'nope = 1': there is no nope"):
        chosen(rows, "nope = 1")
