"""OAUTHBEARER: the grammar of RFC 7628 and kafka-python's client."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth

from penstock.security.jws import InvalidToken
from penstock.security.oauthbearer import OauthBearerServer, parse_initial_response
from penstock.security.resources import Principal
from penstock.security.sasl import (
    FAILURE_MESSAGES,
    Challenge,
    Done,
    Mechanism,
    Refused,
    SaslServer,
)
from penstock.security.tokens import AccessToken


def verify(token: bytes) -> AccessToken:
    if token != b"good.token":
        raise InvalidToken("the signature is wrong")
    return AccessToken(Principal("User", "alice"), 5000, groups=(Principal("Group", "dev"),))


def server() -> SaslServer:
    return SaslServer(Mechanism.OAUTHBEARER, OauthBearerServer(verify))


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return {"traceId": "123", "logicalCluster": "lkc-1"}


def kafka_python(token: str) -> Any:
    return SaslMechanismOAuth(sasl_oauth_token_provider=Provider(token))


DONE = Done(Principal("User", "alice"), expires_ms=5000, groups=(Principal("Group", "dev"),))


def test_kafka_python_logs_in() -> None:
    client = kafka_python("good.token")
    outcome = server().step(client.auth_bytes())
    assert outcome == DONE
    client.receive(DONE.data)
    assert client.is_authenticated()


def test_a_refused_token_costs_one_more_round_and_tells_nothing() -> None:
    client, exchange = kafka_python("bad.token"), server()
    challenge = exchange.step(client.auth_bytes())
    assert isinstance(challenge, Challenge)
    assert json.loads(challenge.data) == {"status": "invalid_token"}
    client.receive(challenge.data)
    assert not client.is_authenticated()
    refused = exchange.step(client.auth_bytes())
    assert refused == Refused(FAILURE_MESSAGES[Mechanism.OAUTHBEARER], "the signature is wrong")


def test_a_good_token_after_a_refused_one_is_refused() -> None:
    exchange = server()
    assert isinstance(exchange.step(b"n,,\x01auth=Bearer bad\x01\x01"), Challenge)
    assert isinstance(exchange.step(b"n,,\x01auth=Bearer good.token\x01\x01"), Refused)


@pytest.mark.parametrize(
    "data",
    [
        b"n,,\x01auth=Bearer good.token\x01\x01",
        b"y,,\x01auth=bearer good.token\x01\x01",
        b"n,a=alice,\x01auth=Bearer good.token\x01\x01",
        b"n,,\x01host=broker\x01port=9092\x01auth=Bearer  good.token\x01\x01",
    ],
)
def test_forms_of_the_first_message(data: bytes) -> None:
    assert server().step(data) == DONE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good.token",
        b"n,,\x01auth=Bearer good.token\x01",
        b"n,,\x01auth=Bearer good.token\x01\x01x",
        b"n,,\x01auth=Bearer good.token\x01\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic good.token\x01\x01",
        b"n,,\x01auth=good.token\x01\x01",
        b"n,,\x01token=x\x01\x01",
        b"n,,\x01auth=Bearer good.token\x01auth=Bearer good.token\x01\x01",
        b"n,,\x01auth=Bearer good.token\x01x\x01\x01",
        b"n,,\x01auth=Bearer good.token\x01x1=y\x01\x01",
        b"n,,\x01auth=Bearer good.token\x01x=\xff\x01\x01",
        b"n,,\x01auth=Bearer good.token"
        + b"".join(b"\x01x%c=1" % c for c in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")
        + b"\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer good.token\x01\x01",
        b"n,b=alice,\x01auth=Bearer good.token\x01\x01",
        b"n,a=\xff,\x01auth=Bearer good.token\x01\x01",
        b"n,a=bob,\x01auth=Bearer good.token\x01\x01",
        b"n,\x01auth=Bearer good.token\x01\x01",
        b"\x01auth=Bearer good.token\x01\x01",
    ],
)
def test_bad_first_messages_are_refused(data: bytes) -> None:
    exchange = server()
    assert isinstance(exchange.step(data), Challenge)
    assert isinstance(exchange.step(b"\x01"), Refused)


def test_tokens_are_not_printed() -> None:
    assert "good" not in repr(parse_initial_response(b"n,,\x01auth=Bearer good.token\x01\x01"))


@given(st.binary(max_size=100) | st.text("ny,a=\x01authBer x.", max_size=60).map(str.encode))
def test_any_bytes_are_refused_without_another_error(data: bytes) -> None:
    try:
        parse_initial_response(data)
    except InvalidToken:
        pass
