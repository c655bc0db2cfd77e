import subprocess
import sys

import pytest

from penstock.testing import Broker
from penstock.testing.endpoints import Endpoints, parse_ready_line


def test_the_ready_line_says_where_the_broker_is() -> None:
    line = (
        "penstock ready broker=1 listen=127.0.0.1:9092 http=127.0.0.1:9644 data=/my data pid=42\n"
    )
    assert parse_ready_line(line) == Endpoints("127.0.0.1:9092", "127.0.0.1:9644", 42)


def test_clients_get_the_first_listener_and_http_may_be_off() -> None:
    line = "penstock ready broker=1 listen=127.0.0.1:1,10.0.0.1:2 http=off data=d pid=42"
    assert parse_ready_line(line) == Endpoints("127.0.0.1:1", None, 42)


@pytest.mark.parametrize("line", ["", "penstock", "penstock starting", "ready penstock listen=x"])
def test_other_lines_are_passed_over(line: str) -> None:
    assert parse_ready_line(line) is None


def test_a_broker_that_does_not_run_says_so() -> None:
    broker = Broker(subprocess=True)
    try:
        assert not broker.is_running
        with pytest.raises(RuntimeError, match="not running"):
            _ = broker.bootstrap
    finally:
        broker.close()
    assert not broker.data_dir.exists()


def test_the_plugin_loads_nothing_that_a_test_run_does_not_need() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import penstock.testing.plugin; "
        "new = {name for name in set(sys.modules) - before if not name.startswith('_')}; "
        "sys.exit(str(new) if new > {'penstock', 'penstock.testing', 'penstock.testing.plugin'} else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
