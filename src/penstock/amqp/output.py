"""What a connection has to send and to do, collected until the transport takes it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.amqp.effects import Effect, Send
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.method import Method


class Output:
    """Calls `on_output` once when there is something to take, and again after `drain`."""

    def __init__(self, on_output: Callable[[], None]) -> None:
        self.pieces: list[bytes | memoryview] = []  # the channels append to this very list
        self._effects: list[Effect] = []
        self._on_output = on_output
        self._is_announced = False

    def send(self, method: Method) -> None:
        """Send a method on channel 0."""
        self.pieces.append(encode_method(0, method))
        self.announce()

    def send_raw(self, data: bytes) -> None:
        self.pieces.append(data)
        self.announce()

    def add(self, effect: Effect) -> None:
        """Add an effect after everything that is to be sent."""
        self._flush()
        self._effects.append(effect)
        self.announce()

    def announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            self._on_output()

    def drain(self) -> list[Effect]:
        self._flush()
        effects, self._effects = self._effects, []
        self._is_announced = False
        return effects

    def _flush(self) -> None:
        if self.pieces:
            self._effects.append(Send(self.pieces.copy()))
            self.pieces.clear()
