"""Download of a key set: the only module of the package that does I/O. It blocks: use a thread.

It asks the configured URL and nothing else: no redirect, no proxy. Size and time are limited.
"""

import ssl
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

MAX_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 10.0
_PIECE_BYTES: Final = 65_536


class DownloadFailed(Exception):
    """The text says what failed, without the query of the URL."""


def check_url(url: str) -> str:
    """Return the URL of a key set if its form is supported. Raise ValueError otherwise."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "file"):
        raise ValueError(f"{parts.scheme or 'no scheme'}: use an https, http or file URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL with a user or password is not supported")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path):
        raise ValueError("a file URL has the form file:///path")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError("the URL has no host")
    return url


def download(
    url: str,
    seconds: Callable[[], float],
    *,
    context: ssl.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """Return the body of the URL. `seconds` is a monotonic clock. Raise DownloadFailed."""
    parts = urlsplit(check_url(url))
    place = f"{parts.scheme}://{parts.netloc}{parts.path}"
    try:
        if parts.scheme == "file":
            with open(unquote(parts.path), "rb") as file:
                body = file.read(max_bytes + 1)
        else:
            body = _download(parts, seconds, context, timeout_s, max_bytes)
    except DownloadFailed as error:
        raise DownloadFailed(f"{place}: {error}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadFailed(f"{place}: {type(error).__name__}: {error}") from error
    if len(body) > max_bytes:
        raise DownloadFailed(f"{place}: more than {max_bytes} bytes")
    return body


def _download(
    parts: SplitResult,
    seconds: Callable[[], float],
    context: ssl.SSLContext | None,
    timeout_s: float,
    max_bytes: int,
) -> bytes:
    deadline_s = seconds() + timeout_s
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    with closing(_connection(parts, context, timeout_s)) as connection:
        connection.connect()
        sock = connection.sock  # the response keeps it when the connection lets go of it
        connection.request("GET", target, headers=headers)
        with connection.getresponse() as response:
            if response.status != 200:
                raise DownloadFailed(f"status {response.status} instead of 200")
            body = bytearray()
            while len(body) <= max_bytes:
                remaining_s = deadline_s - seconds()
                if remaining_s <= 0:
                    raise DownloadFailed(f"not complete after {timeout_s:g} s")
                sock.settimeout(remaining_s)
                piece = response.read1(_PIECE_BYTES)
                if not piece:
                    break
                body += piece
            return bytes(body)


def _connection(
    parts: SplitResult, context: ssl.SSLContext | None, timeout_s: float
) -> HTTPConnection:
    assert parts.hostname is not None, "check_url refuses URLs without a host"
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    context = context or ssl.create_default_context()
    return HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
