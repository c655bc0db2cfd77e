"""A broker for the tests of a handler: started once a module, and emptied after each test."""

from collections.abc import Iterator

import pytest

from tests.support.context import BrokerContext, broker_context


@pytest.fixture(scope="module")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerContext]:
    with broker_context(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def broker(_started: BrokerContext) -> Iterator[BrokerContext]:
    yield _started
    _started.reset()
