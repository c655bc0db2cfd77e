"""The time of the next fetch, and a server that misbehaves in every way."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.jwks import KeySet, parse_jwks
from penstock.security.jwks_download import DownloadFailed, check_url, download
from penstock.security.key_refresh import KeyRefresh, RefreshSettings
from penstock.security.token_verifier import TokenVerifier
from penstock.security.tokens import TokenSettings, UnknownKey
from tests.unit.security.token_making import (
    ED25519_JWK,
    ISSUER,
    NOW_S,
    accept_good,
    jwks,
    token,
)

KEYS = parse_jwks(jwks(ED25519_JWK))
SETTINGS = RefreshSettings()
HOUR_MS = 3_600_000


def test_good_keys_are_fetched_again_after_an_hour() -> None:
    refresh = KeyRefresh(SETTINGS, 1000)
    assert refresh.is_due(1000)
    assert refresh.keys(1000) == KeySet()
    refresh.begin(1000)
    assert not refresh.is_due(1001), "one fetch at a time"
    refresh.succeed(KEYS, 1500)
    assert refresh.keys(1500) == KEYS
    assert not refresh.is_due(1499 + HOUR_MS)
    assert refresh.is_due(1500 + HOUR_MS)


def test_failures_are_retried_later_and_later_and_keep_the_good_keys() -> None:
    refresh = KeyRefresh(SETTINGS, 0)
    refresh.restore(KEYS, 0)
    now_ms, waits = 0, []
    for _ in range(100):
        refresh.begin(now_ms)
        refresh.fail(now_ms)
        waits.append(refresh.due_ms - now_ms)
        now_ms = refresh.due_ms
    assert waits[:9] == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    assert max(waits) == 10_000
    assert refresh.keys(now_ms) == KEYS
    assert refresh.keys(24 * HOUR_MS) == KEYS
    assert refresh.keys(24 * HOUR_MS + 1) == KeySet(), "too old"
    refresh.begin(now_ms)
    refresh.succeed(KEYS, now_ms)
    refresh.begin(refresh.due_ms)
    refresh.fail(now_ms)
    assert refresh.due_ms == now_ms + 100, "a success ends the backoff"


def test_an_unknown_key_asks_for_a_fetch_at_most_every_ten_seconds() -> None:
    refresh = KeyRefresh(SETTINGS, 0)
    refresh.begin(0)
    refresh.succeed(KEYS, 10)
    refresh.note_unknown_key(20)
    assert not refresh.is_due(9_999)
    assert refresh.is_due(10_000)
    refresh.begin(10_000)
    refresh.note_unknown_key(10_001)  # while the fetch is under way
    refresh.succeed(KEYS, 10_002)
    refresh.note_unknown_key(15_000)
    assert refresh.due_ms == 20_000


def test_unknown_keys_do_not_shorten_the_wait_after_a_failure() -> None:
    refresh = KeyRefresh(RefreshSettings(retry_backoff_ms=60_000, retry_backoff_max_ms=60_000), 0)
    refresh.begin(0)
    refresh.fail(0)
    refresh.note_unknown_key(30_000)
    assert refresh.due_ms == 60_000


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail", "unknown"]), st.integers(0, 20_000))))
def test_fetches_are_never_more_frequent_than_allowed(events: list[tuple[str, int]]) -> None:
    refresh = KeyRefresh(SETTINGS, 0)
    now_ms, last_success_ms, failures = 0, None, 0
    for event, wait_ms in events:
        now_ms += wait_ms
        if event == "unknown" or not refresh.is_due(now_ms):
            refresh.note_unknown_key(now_ms)
            continue
        if last_success_ms is not None and not failures:
            assert now_ms - last_success_ms >= SETTINGS.unknown_key_interval_ms
        refresh.begin(now_ms)
        if event == "ok":
            refresh.succeed(KEYS, now_ms)
            last_success_ms, failures = now_ms, 0
        else:
            refresh.fail(now_ms)
            failures += 1


# Downloads ---------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    requests: list[str]

    def __init__(self, *args: Any, requests: list[str]) -> None:
        self.requests = requests
        super().__init__(*args)

    def do_GET(self) -> None:
        self.requests.append(self.path)
        status, _, kind = self.path[1:].partition("?")[0].partition("-")
        self.send_response(int(status))
        self.send_header("Location", "/200-redirected")
        self.end_headers()
        try:
            if kind == "huge":
                for _ in range(200):
                    self.wfile.write(bytes(1024))
            elif kind == "slow":
                for _ in range(100):
                    self.wfile.write(b"x")
                    sleep(0.02)
            else:
                self.wfile.write(b"body")
        except OSError:
            pass  # the client has seen enough

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def url(requests: list[str]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, requests=requests)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def fetch(url: str, timeout_s: float = 5, max_bytes: int = 100_000) -> bytes:
    return download(url, monotonic, timeout_s=timeout_s, max_bytes=max_bytes)


def test_a_body_is_downloaded_with_its_query(url: str, requests: list[str]) -> None:
    assert fetch(f"{url}/200-ok?a=b") == b"body"
    assert requests == ["/200-ok?a=b"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/301-moved", "status 301"),
        ("/302-moved", "status 302"),
        ("/404-none", "status 404"),
        ("/500-broken", "status 500"),
        ("/200-huge", "more than 100000 bytes"),
    ],
)
def test_other_answers_fail(url: str, requests: list[str], path: str, text: str) -> None:
    with pytest.raises(DownloadFailed, match=text):
        fetch(f"{url}{path}?secret=x")
    assert requests == [f"{path}?secret=x"], "no redirect is followed"


def test_a_server_that_drips_meets_the_deadline(url: str) -> None:
    begin_s = monotonic()
    with pytest.raises(DownloadFailed) as caught:
        fetch(f"{url}/200-slow?secret=x", timeout_s=0.3)
    assert monotonic() - begin_s < 1.5
    assert "secret" not in str(caught.value)


def test_a_closed_port_fails() -> None:
    with pytest.raises(DownloadFailed, match="ConnectionRefusedError"):
        fetch("http://127.0.0.1:1/keys")


def test_an_untrusted_certificate_fails(url: str) -> None:
    with pytest.raises(DownloadFailed, match=r"SSL|Connection"):
        fetch(url.replace("http:", "https:") + "/200-ok")


def test_files_are_read_with_the_same_limit(tmp_path: Path) -> None:
    path = tmp_path / "a key set.json"
    path.write_bytes(b"body")
    assert fetch(path.as_uri()) == b"body"
    with pytest.raises(DownloadFailed, match="more than 3 bytes"):
        fetch(path.as_uri(), max_bytes=3)
    with pytest.raises(DownloadFailed, match="FileNotFoundError"):
        fetch((tmp_path / "none").as_uri())


@pytest.mark.parametrize(
    "url",
    ["", "keys.json", "ftp://host/x", "https://", "https://u:p@host/", "file://host/x", "file://"],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|scheme"):
        check_url(url)


def test_a_token_with_an_unknown_key_asks_for_a_fetch() -> None:
    refresh = KeyRefresh(SETTINGS, 0)
    refresh.begin(0)
    refresh.succeed(parse_jwks(jwks({**ED25519_JWK, "kid": "k1"})), 0)
    settings = TokenSettings(ISSUER, frozenset())
    now_ms = NOW_S * 1000
    refresh.restore(refresh.keys(0), now_ms)
    verifier = TokenVerifier(settings, refresh, accept_good, lambda: now_ms)
    assert verifier.verify(token()).principal.name == "alice"
    refresh.due_ms = now_ms + HOUR_MS
    with pytest.raises(UnknownKey):
        verifier.verify(token(header={"alg": "EdDSA", "kid": "k2"}))
    assert refresh.is_due(now_ms)
