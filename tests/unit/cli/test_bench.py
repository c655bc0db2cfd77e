"""What `penstock bench compare` hands over, and to whom."""

import sys
from pathlib import Path

import pytest

from penstock.cli.arguments import UsageError
from penstock.cli.bench import command, find_repository
from penstock.cli.main import build_parser


def handed_over(*words: str) -> list[str]:
    line = ["bench", "compare", *words]
    return command(build_parser(line).parse_args(line))


def test_the_harness_is_run_with_what_was_said_and_nothing_else() -> None:
    start = [sys.executable, "-m", "benchmarks.compare", "--out"]
    assert handed_over() == [*start, "build/compare"]
    words = ("--peers", "kafka", "--only", "raw", "--turns", "3", "--quick", "--out", "/o")
    assert handed_over(*words) == [
        *(*start, "/o", "--peers", "kafka", "--only", "raw", "--turns", "3", "--quick"),
    ]


def test_a_checkout_is_found(tmp_path: Path) -> None:
    there = tmp_path / "checkout"
    (there / "benchmarks").mkdir(parents=True)
    (there / "benchmarks" / "compare.py").touch()
    assert find_repository((tmp_path, there)) == there


def test_without_a_checkout_the_remedy_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="checkout of the repository"):
        find_repository((tmp_path,))
