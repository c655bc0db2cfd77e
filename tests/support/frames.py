"""Whether the buffers of frames are still in memory."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.kafka import connection, memory


class Buffer(bytearray):
    """With weak references."""

    made: list[weakref.ref["Buffer"]]

    def __init__(self, *args: bytes | int) -> None:
        super().__init__(*args)
        self.made.append(weakref.ref(self))

    @classmethod
    def alive(cls) -> int:
        return sum(one() is not None for one in cls.made)


@contextmanager
def counted_buffers() -> Iterator[type[Buffer]]:
    """Only references keep buffers alive: there is no pool, and garbage collection frees no cycle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Buffer, "made", [], raising=False)
        patch.setattr(memory, "bytearray", Buffer, raising=False)
        patch.setattr(memory, "_KEPT_BYTES", 0)
        patch.setattr(connection, "bytearray", Buffer, raising=False)
        gc.disable()
        try:
            yield Buffer
        finally:
            gc.enable()
