"""Requests and responses of HTTP/1.1, as far as a scraper and a health check need them. Pure: bytes in, bytes out."""

import re
from http import HTTPStatus
from typing import Final, NamedTuple

HEAD_LIMIT_BYTES: Final = 16 * 1024

_REQUEST_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")
_HEADER_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_ABSOLUTE_FORM: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?]*")


class BadRequest(Exception):
    """A request that is answered with `status` and read no further."""

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

    def encode(self, *, with_body: bool) -> bytes:
        """The whole answer; to HEAD, all of it but the body."""
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.allow:
            head.append(f"Allow: {self.allow}")
        return "\r\n".join([*head, "", ""]).encode("latin-1") + (self.body if with_body else b"")


def text(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())


def parse_head(head: bytes) -> Request:
    """The request of a head that ends with its empty line."""
    request_line, *header_lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        raise BadRequest("the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = match.groups()
    if major != "1":
        raise BadRequest(f"HTTP/{major} is not spoken here", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    hosts = [name for name in map(_header_name, header_lines) if name == "host"]
    if len(hosts) > 1 or (not hosts and minor != "0"):
        raise BadRequest(f"a request has one Host header; this one has {len(hosts)}")
    return Request(method, _path(target))


def _header_name(line: str) -> str:
    match = _HEADER_LINE.fullmatch(line)
    if match is None or any(character in match[2] for character in "\r\n\0"):
        raise BadRequest("a header line is not NAME: VALUE")
    return match[1].lower()


def _path(target: str) -> str:
    path = _ABSOLUTE_FORM.sub("", target, count=1).partition("?")[0] or "/"
    if not path.startswith("/") and path != "*":
        raise BadRequest("the request target is not a path")
    return path
