"""Connections to the other brokers: opened when needed, shared by those who ask in one lane, opened anew after a pause.

Answers of a connection come in order. Who may have to wait long for one has a lane of its own.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from penstock.broker.membership.view import View
from penstock.client.connection import Address, Connection
from penstock.client.errors import ClientError, ConnectionRefused
from penstock.metadata.image import Delta
from penstock.model.errors import ErrorCode
from penstock.wire.schema import Message

R = TypeVar("R", bound=Message)
Refused = Callable[[int], None]

CONTROL: Final = "control"
_OPEN_TIMEOUT_MS: Final = 2_000  # of a broker that hangs; there may be another controller by then
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class _Failure(NamedTuple):
    """A connection that could not be opened: until when nobody tries again, and why."""

    address: Address
    until_s: float
    pause_s: float
    reason: str


class _Line:
    """The one connection to a broker in one lane."""

    __slots__ = ("connection", "failure", "session", "turn")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.session = 0  # of the broker, when the connection was opened
        self.failure: _Failure | None = None
        self.turn = asyncio.Lock()

    def abort(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and not connection.is_closed:
            connection.abort()


class Peers:
    """`view` says where a broker is now, by its inter-broker listener, and when its session ends."""

    def __init__(self, view: View, *, client_id: str) -> None:
        self._view = view
        self._client_id = client_id
        self._lines: dict[tuple[int, str], _Line] = {}
        self._refused: list[Refused] = []
        view.on_change(self._notice)

    def on_refused(self, callback: Refused) -> None:
        """`callback` gets the id of a broker at whose address nobody listens."""
        self._refused.append(callback)

    async def request(
        self,
        broker_id: int,
        message: Message,
        response: type[R],
        *,
        timeout_ms: int,
        lane: str = CONTROL,
    ) -> R:
        """The answer of that broker; raises ClientError when there is none in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(end_s):
                connection = await self._shared(broker_id, lane)
        except TimeoutError:
            raise _silent(broker_id, timeout_ms) from None
        left_ms = max(1, round((end_s - loop.time()) * 1000))
        return await connection.request(message, response, timeout_ms=left_ms)

    async def connection(self, broker_id: int, *, timeout_ms: int) -> Connection:
        """A new connection for the caller alone, who closes it."""
        address = self._address(broker_id)
        try:
            return await Connection.open(
                address,
                client_id=self._client_id,
                timeout_ms=timeout_ms,
                known_as=f", the advertised address of broker {broker_id}",
            )
        except ConnectionRefused:
            for callback in self._refused:
                callback(broker_id)
            raise

    async def close(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.connection is not None:
                await line.connection.close()

    def _notice(self, delta: Delta) -> None:
        """Who still waits for an answer of a broker whose session has ended need not."""
        for (broker_id, _), line in self._lines.items():
            if broker_id in delta.brokers and line.session != self._session_of(broker_id):
                line.abort()

    def _session_of(self, broker_id: int) -> int:
        broker = self._view.image.brokers.get(broker_id)
        return 0 if broker is None else broker.epoch

    async def _shared(self, broker_id: int, lane: str) -> Connection:
        line = self._lines.setdefault((broker_id, lane), _Line())
        address = self._address(broker_id)
        async with line.turn:
            known = line.connection
            if known is not None and not known.is_closed:
                if known.address == address:
                    return known
                await known.close()
            line.session = self._session_of(broker_id)
            line.connection = await self._opened(line, broker_id, address)
            return line.connection

    async def _opened(self, line: _Line, broker_id: int, address: Address) -> Connection:
        """Soon after a failure it has failed again: a broker that starts is not besieged."""
        now_s = asyncio.get_running_loop().time
        failed = line.failure
        if failed is not None and failed.address == address and now_s() < failed.until_s:
            raise ClientError(failed.reason, ErrorCode.NETWORK_EXCEPTION)
        try:
            opened = await self.connection(broker_id, timeout_ms=_OPEN_TIMEOUT_MS)
        except ClientError as error:
            pause_s = _FIRST_PAUSE_S
            if failed is not None and failed.address == address:
                pause_s = min(failed.pause_s * 2, _LONGEST_PAUSE_S)
            line.failure = _Failure(address, now_s() + pause_s, pause_s, error.message)
            raise
        line.failure = None
        return opened

    def _address(self, broker_id: int) -> Address:
        endpoint = self._view.endpoint(broker_id)
        if endpoint is None:
            raise ClientError(f"broker {broker_id} is not running", ErrorCode.BROKER_NOT_AVAILABLE)
        return Address(endpoint.host, endpoint.port)


def _silent(broker_id: int, timeout_ms: int) -> ClientError:
    return ClientError(
        f"broker {broker_id} was not reached in {timeout_ms} ms", ErrorCode.REQUEST_TIMED_OUT
    )
