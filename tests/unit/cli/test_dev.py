"""What `penstock dev` starts: the command of each broker."""

import pytest

from penstock.cli.main import build_parser, main


def commands(*words: str) -> list[str]:
    from penstock.cli.dev import _plan

    plan = _plan(build_parser(["dev", *words]).parse_args(["dev", *words]))
    return [" ".join(plan.command(number)) for number in range(1, plan.brokers + 1)]


def test_brokers_differ_in_id_ports_and_data_and_share_their_metadata() -> None:
    first, second = commands("--brokers", "2", "--data", "/d", "--port", "1000", "--http", "2000")
    common = "--metadata sqlite:/d/metadata.sqlite"
    assert first == (
        "penstock serve --broker-id 1 --data /d/broker-1 --listen 127.0.0.1:1000 "
        f"--http 127.0.0.1:2000 {common}"
    )
    assert second == (
        "penstock serve --broker-id 2 --data /d/broker-2 --listen 127.0.0.1:1001 "
        f"--http 127.0.0.1:2001 {common}"
    )


def test_three_brokers_are_the_default_on_the_usual_ports() -> None:
    started = commands()
    assert len(started) == 3
    assert "--listen 127.0.0.1:9092 --http 127.0.0.1:9644 " in started[0]
    assert "--listen 127.0.0.1:9094 --http 127.0.0.1:9646 " in started[2]


def test_port_0_is_any_port_for_all_and_http_may_be_off() -> None:
    for line in commands("--port", "0", "--http", "off"):
        assert "--listen 127.0.0.1:0 --http off " in line


def test_racks_are_given_in_turn_and_settings_to_all() -> None:
    started = commands("--racks", "a, b", "-o", "num.partitions=7", "--log-format", "json")
    assert ["--rack a " in line for line in started] == [True, False, True]
    assert ["--rack b " in line for line in started] == [False, True, False]
    assert all(line.endswith("-o num.partitions=7 --log-format json") for line in started)


@pytest.mark.parametrize(
    "words",
    [
        ["--brokers", "0"],
        ["--brokers", "101"],
        ["--brokers", "3", "--port", "65534"],
        ["--brokers", "3", "--http", "65534"],
        ["--http", "on"],
        ["--port", "-1"],
    ],
)
def test_what_cannot_be_is_wrong_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
