from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidConfig
from penstock.node.listeners import (
    Address,
    is_public,
    parse_address,
    parse_http,
    parse_listeners,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("broker-1.example:0", Address("broker-1.example", 0)),
        ("[::1]:9092", Address("::1", 9092)),
        (":9092", Address("", 9092)),
    ],
)
def test_an_address_is_host_and_port_and_prints_as_it_was_given(
    text: str, address: Address
) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9092", "host", "host:", "host:65536", "host:port", "::1:9092", "a b:1", "h:-1"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"give HOST:PORT, such as 127\.0\.0\.1:9092"):
        parse_address(text)


@given(st.text(max_size=30))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with suppress(InvalidConfig):
        parse_listeners(text, text)


@pytest.mark.parametrize(
    ("text", "name", "protocol"),
    [
        ("127.0.0.1:9092", "PLAINTEXT", "plaintext"),
        ("PLAINTEXT://127.0.0.1:9092", "PLAINTEXT", "plaintext"),
        ("internal=127.0.0.1:9092", "INTERNAL", "plaintext"),
        ("INTERNAL=plaintext://127.0.0.1:9092", "INTERNAL", "plaintext"),
    ],
)
def test_name_and_protocol_may_be_left_out(text: str, name: str, protocol: str) -> None:
    (listener,) = parse_listeners(text)
    assert (listener.name, listener.protocol) == (name, protocol)
    assert listener.bind == listener.advertised == Address("127.0.0.1", 9092)


def test_a_protocol_to_come_and_an_unknown_one_are_refused_differently() -> None:
    with pytest.raises(InvalidConfig, match=r"'ssl' .* is not supported yet; use plaintext"):
        parse_listeners("ssl://127.0.0.1:9092")
    with pytest.raises(InvalidConfig, match=r"'http' .* is unknown"):
        parse_listeners("http://127.0.0.1:9092")


def test_clients_are_told_the_advertised_address_of_each_listener() -> None:
    inside, outside = parse_listeners("IN=127.0.0.1:1,OUT=0.0.0.0:2", "OUT=example.org:9092")
    assert inside.advertised == Address("127.0.0.1", 1)
    assert (outside.bind, outside.advertised) == (
        Address("0.0.0.0", 2),
        Address("example.org", 9092),
    )


def test_one_listener_needs_no_name_to_be_advertised_and_kafkas_notation_works() -> None:
    for advertised in ("example.org:9092", "PLAINTEXT://example.org:9092"):
        (listener,) = parse_listeners("PLAINTEXT://:9092", advertised)
        assert listener.advertised == Address("example.org", 9092)


@pytest.mark.parametrize(
    ("listeners", "advertised", "reason"),
    [
        ("", None, "needs a listener"),
        ("0.0.0.0:9092", None, r"--advertise PLAINTEXT=HOST:9092"),
        (":9092", "[::]:9092", r"say which address reaches it"),
        ("h:1,h:2", None, "two listeners have the name PLAINTEXT"),
        ("A=h:1,B=h:1", None, "two listeners have the address h:1"),
        ("A=h:1,B=h:2", "x:1", "which listener is told as 'x:1'"),
        ("A=h:1", "B=x:1", "advertises listener B, which does not exist; there are A"),
        ("A=h:1", "A=x:1,a=y:1", "advertised twice"),
    ],
)
def test_listeners_that_make_no_sense_together_are_refused(
    listeners: str, advertised: str | None, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        parse_listeners(listeners, advertised)


def test_any_number_of_listeners_may_ask_for_a_free_port() -> None:
    assert len(parse_listeners("A=h:0,B=h:0")) == 2


def test_http_is_an_address_or_off() -> None:
    assert parse_http("off") is None
    assert parse_http("127.0.0.1:9644") == Address("127.0.0.1", 9644)


@pytest.mark.parametrize(
    "ip",
    [
        *("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"),
        *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "::ffff:192.168.1.1"),
        *("fc00::1", "fdff::1", "169.254.1.1", "fe80::1", "fe80::1%eth0"),
    ],
)
def test_a_loopback_private_or_link_local_address_is_not_public(ip: str) -> None:
    assert not is_public(ip)


@pytest.mark.parametrize(
    "ip",
    [
        *("0.0.0.0", "::", "::ffff:0.0.0.0", "8.8.8.8", "2001:db8::1", "::ffff:8.8.8.8"),
        *("172.15.255.255", "172.32.0.1", "11.0.0.1", "192.169.0.1", "100.64.0.1", "fec0::1"),
    ],
)
def test_every_other_address_and_every_interface_is_public(ip: str) -> None:
    assert is_public(ip)
