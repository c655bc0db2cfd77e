from collections.abc import Callable
from http import HTTPStatus
from itertools import pairwise
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.http.requests import HEAD_LIMIT_BYTES, BadRequest, Exchange, Request, Response, text
from tests.unit.http.hostile import HOSTILE, REQUESTS, START

WORK_LIMIT_S = 0.1  # linear work takes a few milliseconds, quadratic work half a second


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse(request: bytes) -> Request | None:
    return Exchange().receive(request)


def outcome(pieces: list[bytes]) -> Request | HTTPStatus | None:
    """Return the request, the status of the error, or None if the server waits for more."""
    exchange = Exchange()
    try:
        for piece in pieces:
            if (request := exchange.receive(piece)) is not None:
                return request
    except BadRequest as bad:
        return bad.status
    return None


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/metrics", "/metrics"),
        ("/metrics?debug=1", "/metrics"),
        ("/metrics?from=http://a/b", "/metrics"),
        ("http://broker:9644/livez", "/livez"),
        ("http://broker:9644/livez?debug=1", "/livez"),
        ("http://broker:9644", "/"),
        ("/", "/"),
        ("*", "*"),
    ],
)
def test_the_path_is_the_target_without_origin_and_query(target: str, path: str) -> None:
    assert parse(head(f"GET {target} HTTP/1.1", "Host: b")) == Request("GET", path)


def test_http_1_0_needs_no_host() -> None:
    assert parse(head("GET / HTTP/1.0")) == Request("GET", "/")


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        ["GET /"],
        ["GET  / HTTP/1.1", "Host: b"],
        ["GET / HTTP/1.1 ", "Host: b"],
        ["GET / http/1.1", "Host: b"],
        ["G(T / HTTP/1.1", "Host: b"],
        ["GET metrics HTTP/1.1", "Host: b"],
        ["GET /m\u00e9trics HTTP/1.1", "Host: b"],
        ["GET / HTTP/1.1"],
        ["GET / HTTP/1.1", "Host: a", "host: b"],
        ["GET / HTTP/1.1", "Host b"],
        ["GET / HTTP/1.1", "Host : b"],
        ["GET / HTTP/1.1", " folded", "Host: b"],
        ["GET / HTTP/1.1", "Host: b\nX-Smuggled: c"],
        ["GET / HTTP/1.1", "Host: b\rX-Smuggled: c"],
        ["GET / HTTP/1.1", "Host: b\r"],
        ["GET / HTTP/1.1", "Host: b\0"],
        ["GET / HTTP/1.1", "Host: b", "X: \x0b"],
        ["GET / HTTP/1.1", "Host: b", "Content-Length: x"],
        ["GET / HTTP/1.1", "Host: b", "Content-Length: -1"],
        ["GET / HTTP/1.1", "Host: b", "Content-Length: 1", "Content-Length: 2"],
        ["GET / HTTP/1.1", "Host: b", "Content-Length: 1, 2"],
        ["GET / HTTP/1.1", "Host: b", f"Content-Length: {'9' * 5000}"],
        ["\x16\x03\x01\x02\x00\x01\x00"],
    ],
)
def test_a_malformed_head_is_a_bad_request(lines: list[str]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(head(*lines))
    assert refused.value.status == HTTPStatus.BAD_REQUEST


def test_a_header_may_have_spaces_tabs_and_a_continuation_line() -> None:
    request = parse(head("GET / HTTP/1.1", "Host:\t b \t", "X: a", "  b", "\tc", "Y:"))
    assert request == Request("GET", "/")


def test_an_unknown_transfer_encoding_is_not_implemented() -> None:
    assert (
        outcome([head("POST / HTTP/1.1", "Host: b", "Transfer-Encoding: gzip")])
        is HTTPStatus.NOT_IMPLEMENTED
    )


def test_another_major_version_is_not_supported() -> None:
    assert outcome([head("PRI * HTTP/2.0")]) is HTTPStatus.HTTP_VERSION_NOT_SUPPORTED


def test_bytes_after_the_head_are_ignored() -> None:
    request = head("POST /metrics HTTP/1.1", "Host: b", "Content-Length: 3") + b"\0\r\n"
    assert parse(request) == Request("POST", "/metrics")


def test_a_tls_handshake_is_rejected_at_its_first_byte() -> None:
    assert outcome([b"\x16"]) is HTTPStatus.BAD_REQUEST


def test_a_request_that_ends_early_is_bad_and_no_request_is_not() -> None:
    Exchange().receive_end()
    exchange = Exchange()
    assert exchange.receive(b"GET / HT") is None
    with pytest.raises(BadRequest, match="ended"):
        exchange.receive_end()


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (HEAD_LIMIT_BYTES, Request("GET", "/livez")),
        (HEAD_LIMIT_BYTES + 1, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_a_head_may_have_16_kib(
    length: int, piece_bytes: int, expected: Request | HTTPStatus
) -> None:
    request = START + b"X: " + b"a" * (length - len(START) - 7) + b"\r\n\r\n"
    pieces = [request[i : i + piece_bytes] for i in range(0, length, piece_bytes)]
    assert (len(request), outcome(pieces)) == (length, expected)


def test_a_head_that_never_ends_is_rejected_at_its_limit() -> None:
    assert outcome([START + b"X: " + b"a" * HEAD_LIMIT_BYTES]) == 431


def takes_less_than(limit_s: float, act: Callable[[], object]) -> bool:
    """Return whether one of three runs takes less CPU time."""

    def taken_s() -> float:
        start_s = thread_time()
        act()
        return thread_time() - start_s

    return any(taken_s() < limit_s for _ in range(3))


@pytest.mark.parametrize("request_bytes", HOSTILE.values(), ids=HOSTILE.keys())
def test_work_is_linear_in_the_size_of_a_hostile_head(request_bytes: bytes) -> None:
    assert takes_less_than(WORK_LIMIT_S, lambda: outcome([request_bytes]))


@pytest.mark.parametrize("request_bytes", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_outcome_is_the_same_however_the_bytes_arrive(request_bytes: bytes) -> None:
    one_by_one = [request_bytes[i : i + 1] for i in range(len(request_bytes))]
    assert outcome(one_by_one) == outcome([request_bytes])


def test_work_is_linear_in_the_size_when_bytes_come_one_by_one() -> None:
    request = HOSTILE["many headers"]
    one_by_one = [request[i : i + 1] for i in range(len(request))]
    assert takes_less_than(3 * WORK_LIMIT_S, lambda: outcome(one_by_one))


@given(REQUESTS, st.lists(st.integers(0, 200)))
@example(b"", [])
def test_any_bytes_in_any_pieces_are_a_request_or_a_bad_request_or_unfinished(
    noise: bytes, cuts: list[int]
) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(noise)), len(noise)})
    pieces = [noise[start:end] for start, end in pairwise(places)]
    assert outcome(pieces) == outcome([noise])


@given(REQUESTS)
def test_every_outcome_can_be_answered(noise: bytes) -> None:
    exchange = Exchange()
    try:
        exchange.receive(noise)
    except BadRequest as bad:
        response = exchange.respond(text(bad.status, str(bad)))
    else:
        response = exchange.respond(text(HTTPStatus.OK, "ok"))
    assert response.startswith(b"HTTP/1.1 ")
    assert response.count(b"\r\n\r\n") == 1


def test_the_response_to_head_has_the_length_but_not_the_body() -> None:
    response = Response(HTTPStatus.OK, b"12345")
    answers = []
    for method in ("GET", "HEAD"):
        exchange = Exchange()
        exchange.receive(head(f"{method} / HTTP/1.1", "Host: b"))
        answers.append(exchange.respond(response))
    assert answers[0] == answers[1] + b"12345"
    assert b"\r\nContent-Length: 5\r\n" in answers[1]


def test_an_error_quotes_no_more_than_a_piece_of_the_request() -> None:
    with pytest.raises(BadRequest) as refused:
        parse(HOSTILE["a name without a colon"])
    assert len(str(refused.value)) <= 200
