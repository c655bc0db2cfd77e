"""Ports that stay ours while nobody listens on them: a broker that was killed comes back to the port that it had.

A port that the system chose may be chosen again, for any connection of any process, as soon as its server is down. It
chooses from a range of its own; these are from below that range, and each worker of a test run has a share of them."""

import os
import random
import socket
from itertools import count
from pathlib import Path
from typing import Final

_FIRST: Final = 10_000
_SHARE: Final = 2_000  # ports for each worker
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _own_share() -> range:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    end = int(_RANGE.read_text().split()[0])
    shares = (end - _FIRST) // _SHARE
    assert shares > 0, f"no ports are left below {end}, where the system begins to choose"
    first = _FIRST + worker % shares * _SHARE
    return range(first, first + _SHARE)


_share: Final = _own_share()
_steps = count(random.SystemRandom().randrange(_SHARE))  # two runs on one machine seldom meet


def kept_port() -> int:
    return kept_ports(1)[0]


def kept_addresses() -> dict[str, str]:
    """Settings of a broker that is to come back to where it was."""
    return {name: f"127.0.0.1:{kept_port()}" for name in ("listeners", "penstock.http")}


def kept_ports(wanted: int) -> list[int]:
    """Free now, in a row, and not handed out again before all the others were."""
    found: list[int] = []
    for _ in range(_SHARE):
        port = _share[next(_steps) % _SHARE]
        found = [*found, port] if _is_free(port) and (not found or port == found[-1] + 1) else []
        if len(found) == wanted:
            return found
    raise AssertionError(f"there are no {wanted} free ports in a row within {_share}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
