"""pytest fixtures: a broker for the session, and a fresh topic for each test. Loads nothing until one is used."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker


@pytest.fixture(scope="session")
def penstock_settings() -> Mapping[str, object]:
    """Settings of the session's broker; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker(penstock_settings: Mapping[str, object]) -> "Iterator[Broker]":
    """A broker that all tests of the session share: `penstock_broker.bootstrap`."""
    from penstock.testing.broker import Broker

    with Broker(penstock_settings) as broker:
        yield broker


@pytest.fixture
def penstock_topic(penstock_broker: "Broker") -> str:
    """The name of a topic that no other test has: one partition, empty."""
    return penstock_broker.create_topic()
