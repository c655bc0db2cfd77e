"""The fencing load finds a coordinator that returns a producer epoch twice."""

import pytest

from penstock.transactions.state import Producer
from tests.support.failures import DataError
from tests.support.fencing_load import FencingLoad
from tests.support.raw_transactions import RawTransactional


def run(monkeypatch: pytest.MonkeyPatch, epochs: list[int]) -> FencingLoad:
    """Run the load against a coordinator that returns these epochs, one per request and id."""
    load = FencingLoad("127.0.0.1:1")
    returned: dict[str, list[int]] = {}

    def initialize(self: RawTransactional) -> RawTransactional:
        left = returned.setdefault(self.id, list(epochs))
        self.producer = Producer(1, left.pop(0))
        if not left:
            load._ending.set()
        return self

    monkeypatch.setattr(RawTransactional, "initialize", initialize)
    monkeypatch.setattr("tests.support.fencing_load._PAUSE_S", 0.0)
    load.work()
    return load


def test_epoch_that_is_returned_twice_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="received producer 1 epoch 1 a second time"):
        run(monkeypatch, [0, 1, 1])


def test_growing_epochs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [0, 1, 2]).initialized > 2
