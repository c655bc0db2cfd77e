"""What watches over a run of tests, so that every run ends and says why.

pytest-timeout stops a test that takes too long by an exception in its main thread. That leaves two holes: the timer is
gone as soon as a test fails, so that nothing watches what is stopped afterwards; and an event loop that is just running
a callback logs the exception and goes on. Behind it stands a second limit that needs nobody's help: the stacks of all
threads are printed and the process ends. xdist then names the test."""

import faulthandler
import os
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter

_BEYOND = 5.0  # seconds after a test's own limit, which should have stopped it
_STDERR = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)  # when the terminal is there
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # pytest holds 2 back while a test runs
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.get_verbosity() <= 0:
        config.pluginmanager.register(_TellAtOnce(terminal))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _watch(item)  # anew: pytest calls the watch off when a test fails, for people who debug it


def _watch(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    own = float(marker.args[0] if marker else item.config.getini("timeout"))
    if own > 0:
        faulthandler.dump_traceback_later(own + _BEYOND, exit=True, file=item.config.stash[_STDERR])


class _TellAtOnce:
    """A line for each failure when it happens: a run that is cut short never comes to its summary."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else report.longreprtext
            self._terminal.write_line(f"\nFAILED {report.nodeid} - {said.partition(chr(10))[0]}")
