"""`penstock plan`: flags, files, forms of output, exit codes; the page about it shows what it really prints."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "planning.md"
_CONSOLE = re.compile(r"```console\n\$ (penstock plan [^\n]*)\n(.*?)```", re.DOTALL)
_TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)
EXAMPLES = _CONSOLE.findall(PAGE.read_text())


def planned(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    status = main(["plan", *map(str, words), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if found["fits"] else 1)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=lambda text: text[:60])
def test_the_page_shows_what_is_printed(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, keys = command.partition(" | jq ")
    main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    if keys:
        found = json.loads(text)
        text = "".join(json.dumps(found[key[1:]]) + "\n" for key in keys.split(","))
    assert text == shown


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 3


def test_the_file_of_the_page_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [text] = _TOML.findall(PAGE.read_text())
    file = tmp_path / "load.toml"
    file.write_text(text)
    assert len(tomllib.loads(text)["topic"]) == 2
    main(["plan", "--file", str(file)])
    out = capsys.readouterr().out
    assert "example prices" not in out
    assert "EUR " in out
    assert "KINDS OF MACHINES" in out


def test_later_files_win_and_flags_win_over_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "1.toml", tmp_path / "2.toml"
    one.write_text("topic = {rate = 1000, groups = 2}\nprices = {disk_gb_month = 1}")
    two.write_text("prices = {disk_gb_month = 2}")

    def price(*words: object) -> float:
        found = planned(capsys, *words)
        cost = found["cost"]
        assert isinstance(cost, dict)
        return float(cost["month_by_part"]["disks"])

    first = price("--file", one)
    assert price("--file", one, "--file", two) == pytest.approx(2 * first)
    assert price("--file", one, "--retention", "14d") > 1.9 * first
    assert price("--file", one, "--growth", "2") > 1.9 * first


@pytest.mark.parametrize("name", ["000", "001", "002", "003"])
def test_worked_examples_come_with_their_corrections(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, "--example", name)
    assert found["checks"]
    for form, heading in ((), f"FIGURES OF {name}"), (("--markdown",), f"## Figures of {name}"):
        assert main(["plan", "--example", name, *form]) == 0
        assert heading in capsys.readouterr().out


def test_printed_inputs_give_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--example", "003", "--print-inputs"]) == 0
    file = tmp_path / "inputs.toml"
    file.write_text(capsys.readouterr().out)
    again, first = planned(capsys, "--file", file), planned(capsys, "--example", "003")
    assert again["load"] == first["load"]
    assert again["machines"] == first["machines"]


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", "--rate", "5k/s", "--html", str(page)]) == 0
    assert ElementTree.fromstring(page.read_text()).tag.endswith("html")
    printed = capsys.readouterr()
    assert printed.err == f"wrote {page}\n"
    assert "a month" in printed.out


def test_brokers_that_are_too_few_are_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "500k", "--brokers", "3"]) == 1
    assert capsys.readouterr().out.startswith("3 brokers do not carry this load")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "rate: no messages a second; give --rate, for example --rate 5000"),
        ("--rate 0", "rate: no messages a second"),
        ("--rate -5", "--rate: expected at least 0 and at most 1 T, not -5"),
        ("--rate=-1M/s", "--rate: expected at least 0 and at most 1 T, not -1M/s"),
        ("--rate nan", "--rate: 'nan' is not a finite number"),
        ("--rate 1e999", "--rate: '1e999' is not a finite number"),
        ("--rate 5k/fortnight", "--rate: expected messages a second, such as 5000, 1M/s or 1B/day"),
        ("--rate 5 --message 5lb", "--message: expected a size such as 1KB"),
        ("--rate 5 --message 0", "--message: expected at least 1 B and at most 1 GB, not 0"),
        ("--rate 5 --message 1EB", "--message: expected at least 1 B and at most 1 GB, not 1EB"),
        ("--rate 5 --retention 0d", "--retention: expected more than 0 s"),
        ("--rate 5 --retention 1000y", "--retention: expected more than 0 s and at most 100 y"),
        ("--rate 5 --peak 0.5", "--peak: expected at least 1"),
        ("--rate 5 --compression 0.5", "--compression: expected at least 1"),
        ("--rate 5 --batch 0", "--batch: expected at least 1"),
        ("--rate 5 --brokers 0", "--brokers: expected at least 1 and at most 100 k, not 0"),
        ("--rate 5 --brokers -3", "--brokers: expected at least 1"),
        ("--rate 5 --brokers 2 -r 3", "3 replicas need at least 3 brokers, and there are 2"),
        ("--rate 5 -r 0", "--replication-factor: expected at least 1"),
        ("--rate 5 -r 2.5", "--replication-factor: expected a whole number"),
        ("--rate 5 --zones 0", "--zones: expected at least 1"),
        ("--rate 5 --lose -1", "--lose: expected at least 0"),
        ("--rate 5 --growth 0", "--growth: expected more than 0"),
        ("--rate 5 --growth inf", "--growth: 'inf' is not a finite number"),
        ("--rate 1e12 --message 1GB", "the load needs more than 100,000 machines"),
        ("--rate 5 --machine exampl", "no machine 'exampl' (did you mean example?)"),
        ("--rate 5 --seconds 4000", "--seconds: at most 3600, not 4000"),
        ("--rate 5 --retension 7d", "(did you mean --retention?)"),
        ("--rate 5 --out here.toml", "--out is for --calibrate"),
        ("--rate 5 --print-inputs --html p.html", "--html needs a plan"),
        ("--from here --example 001", "not allowed with argument"),
        ("--from here:port", "--from: "),
        ("--calibrate --data /no/such/place", "--data: /no/such/place is no directory"),
    ],
)
def test_what_is_impossible_is_one_line_and_exit_code_2(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"topic = ", "not TOML: Invalid value (at end of document)"),
        (b"\xff\xfe", "not TOML: "),
        (b"a = " + b"[" * 100_000, "not TOML: "),
        (b"#" * 1_000_001, "larger than 1,000,000 bytes"),
        (b"[[topic]]\nrats = 1", "topic 1: rats: unknown key (did you mean rate?)"),
        (b"[[topic]]\nrate = 1" + b"0" * 5000, "not TOML: "),
    ],
    ids=["torn", "binary", "deep", "large", "unknown", "digits"],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(
    data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.toml"
    file.write_bytes(data)
    assert main(["plan", "--file", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"penstock: {file}: {reason}")
    assert printed.err.count("\n") == 1


def test_a_file_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--file", str(tmp_path / "no.toml")]) == 1
    assert capsys.readouterr().err.endswith("no.toml: no such file or directory\n")


def test_the_rate_of_several_topics_is_not_one_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.toml"
    file.write_text("[[topic]]\nrate = 1\n[[topic]]\nrate = 2\nframed = false")
    assert main(["plan", "--file", str(file), "--rate", "5"]) == 2
    assert "--rate: there are 2 topics" in capsys.readouterr().err
    assert main(["plan", "--file", str(file), "--compression", "3"]) == 2
    assert "measured sizes are compressed already" in capsys.readouterr().err
    assert main(["plan", "--file", str(file), "--compression", "3", "--message", "2KB"]) == 0
