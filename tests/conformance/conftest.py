"""One broker process for all tests of a worker; tests that break a broker start their own."""

from collections.abc import Iterator

import pytest

from penstock.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(subprocess=True) as started:
        yield started
