"""`pytest -p tests.simulation.planted.plugin --plant NAME`: run any tests with a bug of the catalogue planted."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.simulation.catalogue import BY_NAME
from tests.simulation.planted.probe import Probe

_PLANTED = pytest.StashKey[tuple[ExitStack, Probe]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plant", choices=sorted(BY_NAME), help="a bug to plant for the whole run")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--plant")
    if name is not None:
        stack = ExitStack()
        config.stash[_PLANTED] = stack, stack.enter_context(BY_NAME[name].plant())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _PLANTED in config.stash:
        config.stash[_PLANTED][0].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _PLANTED in config.stash:
        probe = config.stash[_PLANTED][1]
        terminalreporter.write_line(
            f"planted {config.getoption('--plant')}: calls={probe.calls} deviations={probe.deviations}"
        )
