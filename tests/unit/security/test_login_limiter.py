"""Failed logins cost their address time, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.login_limiter import LoginLimiter, LoginLimits

HOST = "10.0.0.1"


def fail(limiter: LoginLimiter, times: int, now_ms: int = 0, host: str = HOST) -> None:
    for _ in range(times):
        assert limiter.note_failure(host, now_ms) == 100


def test_the_first_failures_cost_their_connection_only() -> None:
    limiter = LoginLimiter()
    fail(limiter, 9)
    assert [limiter.wait_ms(HOST, 0) for _ in range(5)] == [0] * 5


def test_past_the_rate_logins_are_taken_one_a_second() -> None:
    limiter = LoginLimiter()
    fail(limiter, 10)
    assert [limiter.wait_ms(HOST, 0) for _ in range(12)] == [*range(0, 11_000, 1000), None]
    assert limiter.wait_ms("10.0.0.2", 0) == 0, "another address"
    assert limiter.wait_ms(HOST, 6000) is not None, "failures are forgotten: one in 6 s"


def test_failures_are_forgotten_with_time() -> None:
    limiter = LoginLimiter()
    fail(limiter, 1000)
    assert limiter.wait_ms(HOST, 60_000) == 0, "at most twice the rate is remembered"
    assert limiter.wait_ms(HOST, 60_001) == 0


def test_an_ipv6_network_is_one_address_and_mapped_addresses_are_ipv4() -> None:
    limiter = LoginLimiter()
    for number in range(10):
        fail(limiter, 1, host=f"2001:db8::{number:x}")
    assert limiter.wait_ms("2001:db8::ffff", 0) == 0  # takes the first slot
    assert limiter.wait_ms("2001:db8::eeee", 0) == 1000
    assert limiter.wait_ms("2001:db8:0:1::1", 0) == 0
    assert len(limiter) == 1
    fail(limiter, 10, host="::ffff:10.0.0.1")
    assert [limiter.wait_ms(HOST, 0) for _ in range(2)] == [0, 1000]


def test_the_table_is_bounded() -> None:
    limiter = LoginLimiter(LoginLimits(max_addresses=100))
    for number in range(1000):
        fail(limiter, 1, host=f"10.0.{number // 250}.{number % 250}")
    assert len(limiter) == 100


def test_successful_logins_leave_no_trace() -> None:
    limiter = LoginLimiter()
    assert limiter.wait_ms(HOST, 0) == 0
    assert len(limiter) == 0


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=200))
def test_a_host_that_always_fails_gets_few_tries(steps: list[tuple[int, bool]]) -> None:
    """However a host spaces its tries, it gets at most a burst, the rate, and one a second."""
    limiter = LoginLimiter()
    now_ms = tries = 0
    for wait_ms, patient in steps:
        now_ms += wait_ms
        waits = limiter.wait_ms(HOST, now_ms)
        if waits is None:
            continue
        if patient:
            now_ms += waits
        elif waits:
            continue  # hangs up
        tries += 1
        limiter.note_failure(HOST, now_ms)
    assert tries <= 10 + now_ms / 6000 + now_ms / 1000 + 2
