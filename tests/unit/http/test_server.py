import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http.server import (
    CONNECTIONS_LIMIT,
    DISCARDED_LIMIT_BYTES,
    LINES_PER_TURN,
    HttpServer,
    _Stage,
)
from penstock.telemetry.registry import Registry
from tests.unit.http.hostile import HOSTILE, REQUESTS

GET_METRICS = b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n"


def ready() -> Sequence[str]:
    return ()


@asynccontextmanager
async def serving(
    registry: Registry | None = None,
    readiness: Callable[[], Sequence[str]] = ready,
    timeout_s: float = 30.0,
) -> AsyncIterator[HttpServer]:
    server = HttpServer(registry or Registry(), readiness, timeout_s=timeout_s)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


async def ask(server: HttpServer, request: bytes, *, half_close: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    if half_close:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def answer_to(
    request: bytes,
    *,
    registry: Registry | None = None,
    readiness: Callable[[], Sequence[str]] = ready,
    half_close: bool = False,
    timeout_s: float = 30.0,
) -> tuple[int, dict[str, str], bytes]:
    async def scenario() -> bytes:
        async with serving(registry, readiness, timeout_s) as server:
            return await ask(server, request, half_close=half_close)

    head, _, body = asyncio.run(scenario()).partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in header_lines)
    return int(status_line.split(" ")[1]), headers, body


def test_metrics_are_served_as_prometheus_expects_them() -> None:
    registry = Registry()
    registry.counter("seen_total", "Things seen.", ["topic"]).labels("é").value = 2
    status, headers, body = answer_to(GET_METRICS, registry=registry)
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Connection"] == "close"
    assert body.decode().endswith('seen_total{topic="é"} 2\n')


def test_a_metric_of_many_lines_arrives_whole() -> None:
    registry = Registry()
    count = 3 * LINES_PER_TURN
    registry.gauges_from("sizes", "", ["n"], lambda: (((str(n),), n) for n in range(count)))
    _, _, body = answer_to(GET_METRICS, registry=registry)
    assert body.count(b"\nsizes{") == count


def test_a_metric_that_cannot_be_read_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unreadable() -> float:
        raise OSError("the disk is gone")

    registry = Registry()
    registry.gauge_from("broken", "", unreadable)
    registry.gauge("whole", "").labels().value = 1
    status, _, body = answer_to(GET_METRICS, registry=registry)
    assert (status, b"broken" in body, b"whole 1" in body) == (200, False, True)
    assert "metric-unreadable metric=broken" in caplog.text


def test_live_is_yes_even_when_ready_is_no() -> None:
    status, _, body = answer_to(
        b"GET /livez HTTP/1.1\r\nHost: b\r\n\r\n", readiness=lambda: ["logs are recovering"]
    )
    assert (status, body) == (200, b"ok\n")


def test_ready_says_why_not_until_it_is() -> None:
    reasons = ["logs are recovering: 3 of 10", "not registered"]
    request = b"GET /readyz HTTP/1.1\r\nHost: b\r\n\r\n"
    status, _, body = answer_to(request, readiness=lambda: reasons)
    assert (status, body) == (503, b"not ready\nlogs are recovering: 3 of 10\nnot registered\n")
    reasons.clear()
    assert answer_to(request, readiness=lambda: reasons)[0] == 200


def test_head_answers_without_a_body() -> None:
    status, headers, body = answer_to(b"HEAD /livez HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (status, headers["Content-Length"], body) == (200, "3", b"")


def test_other_paths_are_not_found_and_other_methods_not_allowed() -> None:
    assert answer_to(b"GET /etc/passwd HTTP/1.1\r\nHost: b\r\n\r\n")[0] == 404
    request = b"POST /metrics HTTP/1.1\r\nHost: b\r\nContent-Length: 200000\r\n\r\n" + bytes(60_000)
    status, headers, _ = answer_to(request)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\0\0\0\x10\0\x12\0\x03\0\0\0\x01\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nHost: b\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    ],
)
def test_malformed_requests_are_answered_and_closed(request_bytes: bytes, status: int) -> None:
    assert answer_to(request_bytes)[0] == status


def test_a_request_cut_short_is_bad_and_silence_needs_no_answer() -> None:
    assert answer_to(b"GET / HT", half_close=True)[0] == 400

    async def scenario() -> bytes:
        async with serving() as server:
            return await ask(server, b"", half_close=True)

    assert asyncio.run(scenario()) == b""


def test_a_request_that_never_ends_is_timed_out() -> None:
    """Time jumps past the end of the request's, and stops short of that of the whole exchange."""

    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        now_s, timeout_s = loop.time, 1000.0
        async with serving(timeout_s=timeout_s) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n")
            while not server._connections:  # noqa: ASYNC110  # from then on it waits
                await asyncio.sleep(0)
            loop.time = lambda: now_s() + 1.5 * timeout_s  # type: ignore[method-assign]  # the jump
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 408 ")


def test_a_failing_readiness_is_a_logged_500(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Sequence[str]:
        raise RuntimeError("a bug")

    status, _, _ = answer_to(b"GET /readyz HTTP/1.1\r\nHost: b\r\n\r\n", readiness=broken)
    assert status == 500
    assert "http-request-failed path=/readyz" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


async def connect(
    server: HttpServer, request: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    return reader, writer


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110  # every turn of the loop brings it closer
        await asyncio.sleep(0)


async def received(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_idle_connections_do_not_keep_a_scraper_out() -> None:
    """The oldest idle connection gets a 503 and is closed."""

    async def scenario() -> tuple[bytes, bytes]:
        async with serving() as server:
            idle = [await connect(server) for _ in range(CONNECTIONS_LIMIT)]
            await until(lambda: len(server._connections) == CONNECTIONS_LIMIT)
            scraped = await ask(server, GET_METRICS)
            closed = await received(idle[0][0])
            assert not any(reader.at_eof() for reader, _ in idle[1:])
            for _, writer in idle:
                writer.close()
            return scraped, closed

    scraped, closed = asyncio.run(scenario())
    assert scraped.startswith(b"HTTP/1.1 200 ")
    assert closed.startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("request_bytes", [b"", b"GET / HTTP/1.1\r\n", GET_METRICS])
def test_there_are_never_more_connections_than_the_limit(request_bytes: bytes) -> None:
    """Whether the clients send nothing, half a request, or a request and then do not close."""

    async def scenario() -> tuple[int, int]:
        async with serving() as server:
            most, extra = 0, 20
            clients = []
            for _ in range(CONNECTIONS_LIMIT + extra):
                clients.append(await connect(server, request_bytes))
                await asyncio.sleep(0)
                most = max(most, sum(it.is_open for it in server._connections))
            closed = [await received(reader) for reader, _ in clients[:extra]]
            for _, writer in clients:
                writer.close()
            return most, len(closed)

    assert asyncio.run(scenario()) == (CONNECTIONS_LIMIT, 20)


def test_a_connection_whose_response_was_sent_is_closed_before_one_that_waits() -> None:
    async def scenario() -> tuple[bytes, bool]:
        async with serving() as server:
            idle = [await connect(server) for _ in range(CONNECTIONS_LIMIT - 1)]
            await until(lambda: len(server._connections) == CONNECTIONS_LIMIT - 1)
            lingering, writer = await connect(server, GET_METRICS)
            await lingering.readuntil(b"\r\n\r\n")
            scraped = await ask(server, GET_METRICS)
            await until(lambda: len(server._connections) == CONNECTIONS_LIMIT - 1)
            for _, other in [*idle, (lingering, writer)]:
                other.close()
            return scraped, any(reader.at_eof() for reader, _ in idle)

    scraped, is_idle_closed = asyncio.run(scenario())
    assert (scraped[:12], is_idle_closed) == (b"HTTP/1.1 200", False)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clients_that_do_not_read_their_response_do_not_keep_a_scraper_out(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2
    monkeypatch.setattr("penstock.http.server.CONNECTIONS_LIMIT", limit)
    unhandled: list[dict[str, object]] = []

    async def scenario() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: unhandled.append(error))
        async with serving(registry_of(20_000_000)) as server:
            slow = [await connect(server, GET_METRICS) for _ in range(limit)]
            await until(lambda: len(server._connections) == limit)
            await until(lambda: {it.stage for it in server._connections} == {_Stage.WRITING})
            answer = await ask(server, b"GET /livez HTTP/1.1\r\nHost: b\r\n\r\n")
            for _, writer in slow:
                writer.transport.abort()
            return answer

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(scenario()).startswith(b"HTTP/1.1 200 ")
    gc.collect()
    assert not unhandled


def test_scrapes_that_come_together_share_one_text_and_keep_no_other_out() -> None:
    """The oldest one that waits gives its place to the new connection."""

    async def scenario() -> tuple[int, bytes, bytes, list[bytes]]:
        async with serving() as server:
            finish, rendered = asyncio.Event(), 0

            async def render() -> bytes:
                nonlocal rendered
                rendered += 1
                await finish.wait()
                return b"done"

            server._render_all = render  # type: ignore[method-assign]
            waiting = [await connect(server, GET_METRICS) for _ in range(CONNECTIONS_LIMIT)]
            await until(
                lambda: (
                    sum(it.stage is _Stage.RESPONDING for it in server._connections)
                    == CONNECTIONS_LIMIT
                )
            )
            live = await ask(server, b"GET /livez HTTP/1.1\r\nHost: b\r\n\r\n")
            finish.set()
            first, *others = [await received(reader) for reader, _ in waiting]
            for _, writer in waiting:
                writer.close()
            return rendered, live, first, others

    rendered, live, first, others = asyncio.run(scenario())
    assert rendered == 1
    assert live.startswith(b"HTTP/1.1 200 ")
    assert first.startswith(b"HTTP/1.1 503 ")
    assert all(answer.endswith(b"done") for answer in others)


def test_connections_that_were_closed_while_they_waited_are_bounded() -> None:
    async def scenario() -> tuple[int, int]:
        async with serving() as server:
            finish, most = asyncio.Event(), 0

            async def render() -> bytes:
                await finish.wait()
                return b"done"

            server._render_all = render  # type: ignore[method-assign]
            clients = []
            for _ in range(4 * CONNECTIONS_LIMIT):
                clients.append(await connect(server, GET_METRICS))
                await asyncio.sleep(0)
                most = max(most, len(server._connections))
            finish.set()
            answers = [await received(reader) for reader, _ in clients]
            for _, writer in clients:
                writer.close()
            return most, sum(answer.endswith(b"done") for answer in answers)

    most, served = asyncio.run(scenario())
    assert most <= 2 * CONNECTIONS_LIMIT
    assert served > 0


def test_a_client_that_does_not_read_its_response_is_closed_at_the_deadline() -> None:
    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        now_s, timeout_s = loop.time, 1000.0
        async with serving(registry_of(20_000_000), timeout_s=timeout_s) as server:
            _, writer = await connect(server, GET_METRICS)
            await until(lambda: any(it.stage is _Stage.WRITING for it in server._connections))
            (connection,) = server._connections
            loop.time = lambda: now_s() + 3 * timeout_s  # type: ignore[method-assign]  # the jump
            await until(lambda: not server._connections)
            writer.transport.abort()
            return connection.is_open

    assert not asyncio.run(scenario())


def test_no_part_of_a_response_is_left_to_send_when_a_connection_ends() -> None:
    """Else the connection would stay for as long as its client likes, and nothing would count it.

    The second response is a little larger than what the sockets hold.
    """

    async def unsent_bytes(response_bytes: int) -> tuple[int, int]:
        """Return what the client, which reads nothing, leaves in the buffer: at first, at the end."""
        loop = asyncio.get_running_loop()
        now_s, timeout_s = loop.time, 1000.0
        async with serving(registry_of(response_bytes), timeout_s=timeout_s) as server:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            await loop.sock_sendall(client, GET_METRICS)
            await until(lambda: bool(server._connections))
            (connection,) = server._connections
            written = (_Stage.WRITING, _Stage.LINGERING)
            await until(lambda: connection.stage in written)
            first_bytes = connection.writer.transport.get_write_buffer_size()
            sending = loop.create_task(loop.sock_sendall(client, bytes(2 * DISCARDED_LIMIT_BYTES)))
            for _ in range(1000):
                await asyncio.sleep(0)
            loop.time = lambda: now_s() + 3 * timeout_s  # type: ignore[method-assign]  # the jump
            await until(lambda: not server._connections)
            loop.time = now_s  # type: ignore[method-assign]
            sending.cancel()
            client.close()
            return first_bytes, connection.writer.transport.get_write_buffer_size()

    large_bytes = 20_000_000
    kept_bytes, _ = asyncio.run(unsent_bytes(large_bytes))
    held_bytes = large_bytes - kept_bytes
    assert asyncio.run(unsent_bytes(held_bytes + 32 * 1024))[1] == 0


def registry_of(size_bytes: int) -> Registry:
    """One whose text has at least this size, and 10 KB more at most."""
    registry = Registry()
    value, count = "x" * 10_000, size_bytes // 10_010 + 1
    registry.gauges_from("s", "", ["n"], lambda: (((f"{value}{n}",), n) for n in range(count)))
    return registry


@settings(max_examples=20)
@given(st.lists(REQUESTS, min_size=1, max_size=5))
def test_any_bytes_lead_to_a_response_or_a_close_and_to_no_unhandled_error(
    requests: list[bytes],
) -> None:
    unhandled: list[dict[str, object]] = []

    async def scenario() -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: unhandled.append(error))
        async with serving() as server:
            return [await ask(server, request, half_close=True) for request in requests]

    for answer in asyncio.run(scenario()):
        assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert not unhandled


@pytest.mark.parametrize("request_bytes", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_requests_are_answered(request_bytes: bytes) -> None:
    assert answer_to(request_bytes, half_close=True)[0] in (200, 400, 404, 405, 431, 501)


def test_bytes_that_come_one_by_one_are_answered() -> None:
    async def scenario() -> bytes:
        async with serving() as server:
            reader, writer = await connect(server)
            for byte in GET_METRICS:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 200 ")


def test_of_requests_sent_together_the_first_is_answered() -> None:
    status, headers, body = answer_to(
        b"GET /livez HTTP/1.1\r\nHost: b\r\n\r\n" + b"GET /nothing HTTP/1.1\r\nHost: b\r\n\r\n" * 9
    )
    assert (status, headers["Connection"], body) == (200, "close", b"ok\n")


def test_a_chunked_body_is_not_read() -> None:
    request = b"POST /livez HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answer_to(request + b"FFFFFFFF\r\n" + bytes(50_000))[0] == 405


def test_closing_ends_the_exchanges_that_wait() -> None:
    async def scenario() -> bytes:
        async with serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n")
            await server.close()
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

    assert asyncio.run(scenario()) == b""
