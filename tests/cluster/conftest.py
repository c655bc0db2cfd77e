"""A test that fails with a cluster in its hands shows the ends of its brokers' logs."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.support.cluster import ClusterOfServers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A fixture is not told of the failure: its end comes later."""
    held: dict[str, Any] = getattr(item, "funcargs", {})
    if call.when == "call" and call.excinfo is not None:
        for value in held.values():
            if isinstance(value, ClusterOfServers):
                value.explain(call.excinfo.value)
    return (yield)
