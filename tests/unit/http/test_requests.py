from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.requests import BadRequest, Request, Response, parse_head


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/metrics", "/metrics"),
        ("/metrics?debug=1", "/metrics"),
        ("http://broker:9644/livez", "/livez"),
        ("http://broker:9644", "/"),
        ("/", "/"),
        ("*", "*"),
    ],
)
def test_the_path_is_the_target_without_origin_and_query(target: str, path: str) -> None:
    assert parse_head(head(f"GET {target} HTTP/1.1", "Host: b")) == Request("GET", path)


def test_http_1_0_needs_no_host() -> None:
    assert parse_head(head("GET / HTTP/1.0")) == Request("GET", "/")


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
        ["GET / HTTP/1.1"],
        ["GET / HTTP/1.1", "Host: a", "host: b"],
        ["GET / HTTP/1.1", "Host b"],
        ["GET / HTTP/1.1", "Host : b"],
        ["GET / HTTP/1.1", "Host: b", " folded"],
        ["GET / HTTP/1.1", "Host: b\nX-Smuggled: c"],
        ["GET / HTTP/1.1", "Host: b\0"],
        ["\x16\x03\x01\x02\x00\x01\x00"],
    ],
)
def test_a_malformed_head_is_a_bad_request(lines: list[str]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head(*lines))
    assert refused.value.status == HTTPStatus.BAD_REQUEST


def test_another_major_version_is_refused_as_such() -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head("PRI * HTTP/2.0"))
    assert refused.value.status == HTTPStatus.HTTP_VERSION_NOT_SUPPORTED


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_make_a_bad_request(noise: bytes) -> None:
    try:
        request = parse_head(noise)
    except BadRequest:
        return
    assert request.path


def test_an_answer_to_head_has_the_length_but_not_the_body() -> None:
    response = Response(HTTPStatus.OK, b"12345")
    assert response.encode(with_body=True) == response.encode(with_body=False) + b"12345"
    assert b"\r\nContent-Length: 5\r\n" in response.encode(with_body=False)
