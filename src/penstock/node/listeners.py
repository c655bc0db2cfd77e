"""Addresses: where a broker listens, and what it tells clients. Text in, checked values out."""

import logging
import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from penstock.model.errors import InvalidConfig
from penstock.model.settings import split_list

PROTOCOLS: Final = ("plaintext",)
COMING_PROTOCOLS: Final = ("ssl", "sasl_plaintext", "sasl_ssl", "amqp", "amqps")

_LISTENER: Final = re.compile(
    r"(?:(?P<name>\w+)=)?(?:(?P<protocol>\w+)://)?(?P<address>.*)", re.ASCII
)
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]=,]*)):(?P<port>\d{1,5})"
)
_EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})
_PORT_MAX: Final = 65_535
_NOT_PUBLIC: Final = tuple(
    ip_network(text)
    for text in (
        *("127.0.0.0/8", "::1/128"),  # loopback
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private
        *("169.254.0.0/16", "fe80::/10"),  # link local
    )
)

_log = logging.getLogger(__name__)


class Address(NamedTuple):
    host: str  # "" is every address of the machine
    port: int  # 0 is any free port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener(NamedTuple):
    """One door of the broker. An advertised port of 0 is the port that was bound."""

    name: str
    protocol: str
    bind: Address
    advertised: Address


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise InvalidConfig(f"{text!r} is not an address; give HOST:PORT, such as 127.0.0.1:9092")
    return Address(match["ip6"] or match["host"] or "", int(match["port"]))


def parse_http(text: str) -> Address | None:
    """The address of metrics and health checks; None for `off`."""
    return None if text.lower() == "off" else parse_address(text)


def parse_listeners(listeners: str, advertised: str | None = None) -> tuple[Listener, ...]:
    """Comma-separated `[NAME=][PROTOCOL://]HOST:PORT`, each with the address that clients are told."""
    opened = [_parse_listener(text) for text in split_list(listeners)]
    if not opened:
        raise InvalidConfig("a broker needs a listener, such as 127.0.0.1:9092")
    _refuse_repeated("name", (listener.name for listener in opened))
    _refuse_repeated("address", (str(it.bind) for it in opened if it.bind.port))
    told = _parse_advertised(advertised or "", [listener.name for listener in opened])
    return tuple(_advertise(listener, told) for listener in opened)


def is_public(ip: str) -> bool:
    """Return whether hosts outside a private network may reach the address.

    A listener on every interface counts as public: any of them may be.
    """
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not any(address in network for network in _NOT_PUBLIC)


def warn_if_open_to_all(listener: str, ip: str, port: int) -> None:
    """Log a warning if a listener is bound to a public address. No listener has authentication yet."""
    if is_public(ip):
        _log.warning(
            "listener-open-to-all listener=%s address=%s remedy=%s",
            listener,
            Address(ip, port),
            "there is no authentication: bind to a loopback or private address, or let a firewall keep strangers out",
        )


def _parse_listener(text: str) -> Listener:
    name, protocol, address = _split(text)
    protocol = (protocol or "plaintext").lower()
    if protocol not in PROTOCOLS:
        known = "is not supported yet" if protocol in COMING_PROTOCOLS else "is unknown"
        raise InvalidConfig(f"protocol {protocol!r} of listener {text!r} {known}; use plaintext")
    bind = parse_address(address)
    return Listener((name or protocol).upper(), protocol, bind, bind)


def _parse_advertised(advertised: str, names: list[str]) -> dict[str, Address]:
    told: dict[str, Address] = {}
    for text in split_list(advertised):
        name, protocol, address = _split(text)
        name = (name or protocol or (names[0] if len(names) == 1 else "")).upper()
        if not name:
            raise InvalidConfig(f"which listener is told as {text!r}? give NAME={text}")
        if name not in names:
            raise InvalidConfig(
                f"{text!r} advertises listener {name}, which does not exist; there are {', '.join(names)}"
            )
        if name in told:
            raise InvalidConfig(f"listener {name} is advertised twice")
        told[name] = parse_address(address)
    return told


def _advertise(listener: Listener, told: dict[str, Address]) -> Listener:
    address = told.get(listener.name, listener.bind)
    if address.host in _EVERY_ADDRESS:
        raise InvalidConfig(
            f"listener {listener.name} would tell clients to connect to '{address}'; "
            f"say which address reaches it: --advertise {listener.name}=HOST:{address.port}"
        )
    return listener._replace(advertised=address)


def _split(text: str) -> tuple[str | None, str | None, str]:
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise InvalidConfig(f"{text!r} is not a listener; give [NAME=][PROTOCOL://]HOST:PORT")
    return match["name"], match["protocol"], match["address"]


def _refuse_repeated(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise InvalidConfig(
                f"two listeners have the {what} {value}; give each its own: NAME=HOST:PORT"
            )
        seen.add(value)
