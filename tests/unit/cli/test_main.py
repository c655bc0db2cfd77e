"""What a user sees when no broker is needed, or none is there."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock import __version__
from penstock.cli.main import COMMANDS, join_times_ago, main


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound_but_not_listening.getsockname()[1]}"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: penstock {command}")


@pytest.mark.parametrize("command", ["create", "list", "describe", "alter", "trim", "delete"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", command, "--help"]) == 0
    assert f"examples:\n  penstock topic {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "t", "-p", "0"],
        ["topic", "create", "t", "-p", "many"],
        ["topic", "create", "t", "-c", "retention.ms"],
        ["topic", "alter", "t"],
        ["topic", "trim", "t"],
        ["topic", "trim", "t", "--before", "yesterday"],
        ["topic", "list", "--bootstrap", "nowhere:port"],
        ["produce", "t", "-k", "a", "--key-separator", ":"],
        ["produce", "t", "-z", "rar"],
        ["consume", "t", "--from", "soon"],
        ["consume", "t", "-f", "%z"],
        ["consume", "t", "-g", "g", "--from", "17"],
        ["consume", "t", "-g", "g", "--partition", "1"],
        ["log", "dump"],
        ["serve", "-o", "no.such.setting=1"],
        ["serve", "--listen", "nonsense"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("penstock")


def test_an_option_that_is_not_known_is_told_by_its_command_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--data-dir=x", "y"]) == 2
    assert capsys.readouterr().err == (
        "penstock serve: unrecognized arguments: --data-dir=x y (did you mean --data?); "
        "see: penstock serve --help\n"
    )
    assert main(["topic", "create", "t", "--zzz"]) == 2
    assert capsys.readouterr().err == (
        "penstock topic create: unrecognized arguments: --zzz; see: penstock topic create --help\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "describe", "t", "--json"],
        ["topic", "alter", "t", "-p", "3"],
        ["topic", "trim", "t", "--before", "-2h"],
        ["topic", "delete", "t"],
        ["cluster", "describe"],
        ["cluster", "health"],
        ["cluster", "leaders"],
        ["produce", "t"],
        ["consume", "t"],
        ["consume", "t", "-g", "g"],
    ],
)
def test_without_a_broker_the_error_names_the_address_and_the_remedy(
    words: list[str], nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--bootstrap", nowhere]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"penstock: cannot reach {nowhere}: connection refused; "
        "is a broker running there? start one with: penstock serve\n"
    )


def test_the_bootstrap_address_comes_from_the_environment(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", nowhere)
    assert main(["topic", "list"]) == 1
    assert nowhere in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no/such/file.log", "no/such/file"])
def test_a_file_that_is_not_there_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", name]) == 1
    assert capsys.readouterr().err == f"penstock: {name}: no such file or directory\n"


@pytest.mark.parametrize("number", ["0", "-1", "many", "2147483648"])
def test_a_wrong_number_is_answered_with_the_right_ones(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "create", "t", "-p", number]) == 2
    expected = f"expected a whole number from 1 to 2147483647, not '{number}'"
    assert expected in capsys.readouterr().err


def test_what_is_optional_is_not_named_as_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce"]) == 2
    assert "the following arguments are required: TOPIC;" in capsys.readouterr().err


def test_a_bug_is_one_line_unless_the_trace_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(words: object) -> None:
        raise ZeroDivisionError(f"broken by {words}")

    monkeypatch.setattr("penstock.cli.main.build_parser", broken)
    assert main([]) == 1
    assert "internal error: ZeroDivisionError: broken by []" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize(("is_read", "status"), [(False, 0), (True, 1)], ids=["left", "there"])
def test_only_a_reader_that_left_ends_a_command_quietly(is_read: bool, status: int) -> None:
    """`penstock … | head` is no failure; a connection that breaks raises the same error, and is one."""
    broken = "raise BrokenPipeError(32, 'Broken pipe')" if is_read else "print('.' * 10**6)"
    script = f"""
import penstock.cli.main as cli
def run(words):
    {broken}
cli.build_parser = run
raise SystemExit(cli.main([]))
"""
    reading, writing = os.pipe()
    if not is_read:
        os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    if is_read:
        os.close(reading)
    assert (done.returncode, done.stderr) == (status, "penstock: broken pipe\n" if status else "")


def test_a_time_ago_is_a_value_not_an_option() -> None:
    assert join_times_ago(["--from", "-2h", "-n", "3"]) == ["--from=-2h", "-n", "3"]
    assert join_times_ago(["-5m", "--from=-1h", "-7d"]) == ["-5m", "--from=-1h", "-7d"]


@pytest.mark.parametrize(
    ("command", "banned"),
    [
        (["--help"], ["asyncio", "penstock.wire", "penstock.node", "rich", "confluent_kafka"]),
        (["topic", "--help"], ["penstock.node", "penstock.storage", "rich", "confluent_kafka"]),
        (["serve", "--help"], ["rich", "confluent_kafka", "numpy", "numba", "pyarrow"]),
        (["pipeline", "--help"], ["pyspark", "numpy", "pyarrow", "rich", "confluent_kafka"]),
        (["consume", "--help"], ["rich", "confluent_kafka", "penstock.storage"]),
    ],
)
def test_a_command_loads_only_what_it_needs(command: list[str], banned: list[str]) -> None:
    script = (
        "import sys; from penstock.cli.main import main; main(sys.argv[2:]); "
        "found = set(sys.argv[1].split(',')) & set(sys.modules); "
        "sys.exit(f'loaded {found}' if found else 0)"
    )
    path = ":".join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script, ",".join(banned), *command],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
