"""The client halves, against the vectors of RFC 7677, our servers, and servers that lie."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.client_exchanges import (
    ClientExchange,
    LoginFailed,
    OauthBearerClient,
    PlainClient,
    ScramClient,
)
from penstock.security.credentials import ScramCredential, make_credential
from penstock.security.jws import InvalidToken
from penstock.security.oauthbearer import OauthBearerServer
from penstock.security.plain import PlainServer
from penstock.security.resources import Principal
from penstock.security.sasl import Done, Mechanism, Refused, SaslServer
from penstock.security.scram import Decoys, ScramServer
from penstock.security.tokens import AccessToken

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def run(client: ClientExchange, server: SaslServer) -> Done | Refused:
    data = client.first()
    while True:
        outcome = server.step(data)
        if isinstance(outcome, Refused):
            return outcome
        answer = client.respond(outcome.data)
        if answer is None:
            assert isinstance(outcome, Done)
            return outcome
        data = answer


def test_the_exchange_of_rfc_7677() -> None:
    client = ScramClient(SHA_256, "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.respond(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.respond(SERVER_FINAL) is None


@settings(max_examples=20, deadline=None)
@given(
    user=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
    password=st.text("abc=, ", min_size=1, max_size=10),
    mechanism=st.sampled_from([SHA_256, SHA_512]),
    is_right=st.booleans(),
)
def test_our_client_and_our_server_agree(
    user: str, password: str, mechanism: Mechanism, is_right: bool
) -> None:
    credential = make_credential(mechanism, password, b"salt")

    def find(name: str, _: Mechanism) -> ScramCredential | None:
        return credential if name == user else None

    attempt = password if is_right else password + "x"
    client = ScramClient(mechanism, user, attempt, NONCE)
    scram = ScramServer(mechanism, find, Decoys(b"secret"), "server")
    assert isinstance(run(client, SaslServer(mechanism, scram)), Done) == is_right
    plain = PlainServer(lambda name, word: (name, word) == (user, password))
    outcome = run(PlainClient(user, attempt), SaslServer(Mechanism.PLAIN, plain))
    assert isinstance(outcome, Done) == is_right


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"e=other-error",
        SERVER_FIRST.replace(b"r=r", b"r=x"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # nothing added
        SERVER_FIRST.replace(b"i=4096", b"i=4095"),
        SERVER_FIRST.replace(b"i=4096", b"i=100001"),
        SERVER_FIRST.replace(b"i=4096", b"i=-1"),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000),
        SERVER_FIRST.replace(b"i=4096", "i=٤٠٩٦٠".encode()),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=?"),
        b"m=x," + SERVER_FIRST,
    ],
)
def test_servers_that_lie_are_found_out(first: bytes) -> None:
    with pytest.raises(LoginFailed):
        ScramClient(SHA_256, "user", "pencil", NONCE).respond(first)


@pytest.mark.parametrize(
    "final", [b"", b"e=invalid-proof", b"v=", b"v=?", b"v=" + base64.b64encode(bytes(32))]
)
def test_a_server_without_the_keys_is_found_out(final: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", NONCE)
    client.respond(SERVER_FIRST)
    with pytest.raises(LoginFailed):
        client.respond(final)


def test_tokens() -> None:
    def verify(token: bytes) -> AccessToken:
        if token != b"good":
            raise InvalidToken("bad")
        return AccessToken(Principal("User", "alice"), 5)

    def server() -> SaslServer:
        return SaslServer(Mechanism.OAUTHBEARER, OauthBearerServer(verify))

    assert isinstance(run(OauthBearerClient("good"), server()), Done)
    assert isinstance(run(OauthBearerClient("bad"), server()), Refused)
    client = OauthBearerClient("bad")
    assert client.respond(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(LoginFailed, match="refused the token"):
        client.respond(b"")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlainClient("a\0b", "x"),
        lambda: PlainClient("a", "x\0"),
        lambda: PlainClient("a", "x").respond(b"more"),
    ],
)
def test_plain_sends_one_message_of_three_fields(make: Callable[[], object]) -> None:
    with pytest.raises(LoginFailed):
        make()
