"""Slows down those who fail to log in: a delay per connection, and a rate per address.

Nobody is locked out: past the rate, logins from the address are taken one a second. Connections
that are authenticated are not affected. Time is an argument; the table of addresses is bounded.
"""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from penstock.security.acls import parse_address

MINUTE_MS: Final = 60_000
_IPV6_PREFIX_BITS: Final = 64  # what one host can easily choose addresses from


@dataclass(frozen=True, slots=True)
class LoginLimits:
    failure_delay_ms: int = 100  # connection.failed.authentication.delay.ms
    failures_per_minute: int = 10  # penstock.authentication.failures.per.minute
    slot_ms: int = 1000  # between logins of an address past that rate
    max_wait_ms: int = 10_000  # penstock.authentication.timeout.ms
    max_addresses: int = 10_000


@dataclass(slots=True)
class _Address:
    failures: float  # decays with time
    counted_ms: int  # when `failures` was right
    next_slot_ms: int


class LoginLimiter:
    """Owned by one event loop. Time must not go backwards: use a monotonic clock."""

    def __init__(self, limits: LoginLimits | None = None) -> None:
        self._limits = limits or LoginLimits()
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def __len__(self) -> int:
        return len(self._addresses)

    def wait_ms(self, host: str, now_ms: int) -> int | None:
        """Return how long a login from this host must wait; None: close the connection now.

        Call it once for each login: it reserves a place in the address's line.
        """
        address = self._addresses.get(_key(host))
        if address is None:
            return 0
        if self._decay(address, now_ms) < self._limits.failures_per_minute:
            return 0
        slot_ms = max(now_ms, address.next_slot_ms)
        if slot_ms - now_ms > self._limits.max_wait_ms:
            return None
        address.next_slot_ms = slot_ms + self._limits.slot_ms
        return slot_ms - now_ms

    def note_failure(self, host: str, now_ms: int) -> int:
        """Count a failed login. Return the delay before the response and the hang-up."""
        key = _key(host)
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _Address(0.0, now_ms, now_ms)
            if len(self._addresses) > self._limits.max_addresses:
                self._addresses.popitem(last=False)  # the one that failed longest ago
        self._addresses.move_to_end(key)
        failures = self._decay(address, now_ms) + 1
        address.failures = min(failures, 2.0 * self._limits.failures_per_minute)
        return self._limits.failure_delay_ms

    def _decay(self, address: _Address, now_ms: int) -> float:
        forgotten = (now_ms - address.counted_ms) * self._limits.failures_per_minute / MINUTE_MS
        address.failures = max(0.0, address.failures - forgotten)
        address.counted_ms = now_ms
        return address.failures


def _key(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 network of one site."""
    address = parse_address(host)
    if isinstance(address, IPv6Address):
        network = int(address) >> (128 - _IPV6_PREFIX_BITS)
        return f"{network:x}/{_IPV6_PREFIX_BITS}"
    return str(address) if address is not None else host[:64]
