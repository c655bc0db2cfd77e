"""Requests that are built to hurt, each as large as the limit allows, and a strategy for more of them."""

from hypothesis import strategies as st

from penstock.http.requests import HEAD_LIMIT_BYTES

START = b"GET /livez HTTP/1.1\r\nHost: b\r\n"


def repeated(start: bytes, unit: bytes, end: bytes) -> bytes:
    """Return a request of the largest head that the limit allows."""
    count = (HEAD_LIMIT_BYTES - len(start) - len(end)) // len(unit)
    return start + unit * count + end


HOSTILE = {
    "spaces, then a bare LF": repeated(START + b"X:", b" ", b"\n\r\n\r\n"),
    "spaces, then a bare CR": repeated(START + b"X:", b" ", b"\rb\r\n\r\n"),
    "spaces, then two CR": repeated(START + b"X:", b" ", b"\r\r\n\r\n"),
    "spaces, then NUL": repeated(START + b"X:", b" ", b"\0\r\n\r\n"),
    "spaces, then VT": repeated(START + b"X:", b" ", b"\x0b\r\n\r\n"),
    "spaces, then FF": repeated(START + b"X:", b" ", b"\x0c\r\n\r\n"),
    "spaces, then NEL": repeated(START + b"X:", b" ", b"\x85\r\n\r\n"),
    "spaces": repeated(START + b"X:", b" ", b"\r\n\r\n"),
    "spaces, a letter, NUL": repeated(START + b"X:", b" ", b"a\0\r\n\r\n"),
    "a letter, then spaces, then NUL": repeated(START + b"X:a", b" ", b"\0\r\n\r\n"),
    "letters and spaces, then NUL": repeated(START + b"X:", b"a \t", b"\0\r\n\r\n"),
    "tabs, then a space": repeated(START + b"X:", b"\t", b" \r\n\r\n"),
    "a name without a colon": repeated(START, b"a", b"\r\n\r\n"),
    "a name, then a space": repeated(START, b"a", b" : b\r\n\r\n"),
    "folded lines": repeated(START + b"X:", b"\r\n ", b"\r\n\r\n"),
    "folded lines, then NUL": repeated(START + b"X:", b"\r\n ", b"\0\r\n\r\n"),
    "folded letters": repeated(START + b"X: a", b"\r\n a", b"\r\n\r\n"),
    "many headers": repeated(START, b"a:\r\n", b"\r\n"),
    "many hosts": repeated(START, b"Host:\r\n", b"\r\n"),
    "many lengths": repeated(START, b"Content-Length:1\r\n", b"\r\n"),
    "one length in many parts": repeated(START + b"Content-Length: 1", b",1", b"\r\n\r\n"),
    "one huge length": repeated(START + b"Content-Length: ", b"9", b"\r\n\r\n"),
    "many connection options": repeated(START + b"Connection: a", b",a", b"\r\n\r\n"),
    "many expectations": repeated(START, b"Expect: 100-continue\r\n", b"\r\n"),
    "many upgrades": repeated(START, b"Upgrade: h2c\r\n", b"\r\n"),
    "a long path": repeated(b"GET /", b"a", b" HTTP/1.1\r\nHost: b\r\n\r\n"),
    "a long path, then NUL": repeated(b"GET /", b"a", b"\0 HTTP/1.1\r\nHost: b\r\n\r\n"),
    "a long scheme": repeated(b"GET ", b"a", b" HTTP/1.1\r\nHost: b\r\n\r\n"),
    "many schemes": repeated(b"GET a", b"://", b" HTTP/1.1\r\nHost: b\r\n\r\n"),
    "many queries": repeated(b"GET /", b"?", b" HTTP/1.1\r\nHost: b\r\n\r\n"),
    "a long method": repeated(b"", b"A", b" / HTTP/1.1\r\nHost: b\r\n\r\n"),
    "a method without end": repeated(b"", b"A", b""),
    "spaces only": repeated(b"", b" ", b"\r\n\r\n"),
    "spaces in the request line": repeated(b"GET", b" ", b"/ HTTP/1.1\r\nHost: b\r\n\r\n"),
    "bare LF only": repeated(b"", b"\n", b"\r\n\r\n"),
    "CR only": repeated(b"", b"\r", b"\n\r\n"),
    "CR LF CR": repeated(START + b"X: ", b"\r\n\r", b"\r\n\r\n"),
}

# Most random bytes fail at the first check. These are built from what the parser looks for.
_FRAGMENTS = st.sampled_from(
    [
        *(b"GET ", b"HEAD ", b"CONNECT ", b"/metrics", b"http://b", b"*", b"?"),
        *(b" HTTP/1.", b"1", b"0", b"GET / HTTP/1.1\r\n", b"Host: b\r\n"),
        *(b"\r\n", b"\r\n\r\n", b"\r", b"\n", b"\0", b" ", b"\t", b":", b",", b"\x80", b"a"),
        *(b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Connection: ", b"close"),
        *(b"Expect: ", b"100-continue", b"Upgrade: ", b"h2c"),
    ]
)
REQUESTS = st.binary(max_size=200) | st.lists(_FRAGMENTS, max_size=20).map(b"".join)
