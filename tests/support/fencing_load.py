"""Initializes transactional ids again and again: no two incarnations may get the same producer epoch."""

import time
from typing import Final

from penstock.transactions.state import Producer
from tests.support.failures import DataError
from tests.support.raw_transactions import RawTransactional
from tests.support.recorders import Worker
from tests.support.server import until

_IDS: Final = 12
_PAUSE_S: Final = 0.02


class FencingLoad(Worker):
    """An id and epoch that a coordinator returns twice would leave the first incarnation unfenced."""

    def __init__(self, bootstrap: str, *, name: str = "fencing") -> None:
        super().__init__(name)
        self.initialized = 0
        self._producers = [RawTransactional(bootstrap, f"{name}-{it}") for it in range(_IDS)]
        self._seen: dict[str, set[Producer]] = {it.id: set() for it in self._producers}

    def work(self) -> None:
        try:
            while not self._ending.is_set():
                for producer in self._producers:
                    self._initialize(producer)
                    time.sleep(_PAUSE_S)
                    if self._ending.is_set():
                        break
        finally:
            for producer in self._producers:
                producer.disconnect()

    def _initialize(self, transactional: RawTransactional) -> None:
        incarnation = transactional.initialize().producer
        seen = self._seen[transactional.id]
        if incarnation in seen:
            raise DataError(f"{transactional.id} received {incarnation} a second time")
        seen.add(incarnation)
        self.initialized += 1

    def await_more(self, count: int = _IDS) -> None:
        goal = self.initialized + count
        until(lambda: self.initialized >= goal or self._death, f"{count} more producer epochs")
        assert self._death is None, self._death
