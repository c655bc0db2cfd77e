"""One HTTP/1.1 request and its response, parsed and written by h11. No I/O: bytes in, bytes out.

The work is linear in the bytes received, whatever they are.
"""

import re
from http import HTTPStatus
from typing import Final, NamedTuple

import h11

HEAD_LIMIT_BYTES: Final = 16 * 1024

_HEAD_END: Final = b"\r\n\r\n"
_REASON_LIMIT: Final = 200  # h11 quotes the whole line in its message

# h11 0.16 takes quadratic time to reject a header line of many spaces and one of these: half a
# second for 16 KiB. Without them every header value matches its regular expression at once.
_ILLEGAL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r[^\n]|(?<!\r)\n")


class BadRequest(Exception):
    """A request that is answered with `status`. The server reads no more of it."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status: Final = status


class Request(NamedTuple):
    method: str
    path: str


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    allow: str = ""


def text(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())


class Exchange:
    """One request and one response; then the server closes the connection.

    h11 receives the head only when it is complete and has no illegal byte.
    """

    def __init__(self) -> None:
        self._protocol: Final = h11.Connection(h11.SERVER, HEAD_LIMIT_BYTES)
        self._head = bytearray()
        self._has_body = True

    def receive(self, data: bytes) -> Request | None:
        """Return the request once its head is complete. Bytes after the head are ignored."""
        searched = max(0, len(self._head) - len(_HEAD_END) + 1)
        self._head += data
        end = self._head.find(_HEAD_END, searched)
        if end >= 0:
            del self._head[end + len(_HEAD_END) :]
        if _ILLEGAL.search(self._head, searched, HEAD_LIMIT_BYTES):
            raise BadRequest("the request head contains a control character or a bare CR or LF")
        if len(self._head) > HEAD_LIMIT_BYTES:
            raise BadRequest(
                f"the request head is over {HEAD_LIMIT_BYTES} bytes",
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        return self._parse() if end >= 0 else None

    def receive_end(self) -> None:
        """Raise if the client closed its side in the middle of a request."""
        if self._head:
            raise BadRequest("the request ended before its empty line")

    def respond(self, response: Response) -> bytes:
        """Return the bytes of the response. The response to HEAD has every header but no body."""
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ]
        if response.allow:
            headers.append(("Allow", response.allow))
        status = response.status
        pieces = [
            self._protocol.send(
                h11.Response(status_code=status.value, reason=status.phrase, headers=headers)
            )
        ]
        if self._has_body:
            pieces.append(self._protocol.send(h11.Data(data=response.body)))
        pieces.append(self._protocol.send(h11.EndOfMessage()))
        return b"".join(piece for piece in pieces if piece)

    def _parse(self) -> Request:
        self._protocol.receive_data(bytes(self._head))
        try:
            event = self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            reason = str(error)[:_REASON_LIMIT]
            raise BadRequest(reason, HTTPStatus(error.error_status_hint)) from None
        assert isinstance(event, h11.Request), "a whole head is a request or an error"
        method, version = event.method.decode("ascii"), event.http_version.decode("ascii")
        self._has_body = method != "HEAD"
        if not version.startswith("1."):
            raise BadRequest(
                f"HTTP/{version} is not supported; use HTTP/1.1",
                HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            )
        return Request(method, _path(event.target.decode("ascii")))


def _path(target: str) -> str:
    """Return the target without origin and query."""
    path = target.partition("?")[0]
    if path.startswith("/") or path == "*":
        return path
    _, is_absolute, rest = path.partition("://")
    if not is_absolute:
        raise BadRequest("the request target is not a path")
    return f"/{rest.partition('/')[2]}"
