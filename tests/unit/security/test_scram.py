"""SCRAM: the vectors of RFC 7677, clients that we did not write, and every kind of bad message."""

import base64
import hmac
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from penstock.security.credentials import (
    ScramCredential,
    credential_from_salted,
    make_credential,
    salted_password,
)
from penstock.security.resources import Principal
from penstock.security.sasl import (
    FAILURE_MESSAGES,
    Challenge,
    Done,
    Mechanism,
    Refused,
    SaslServer,
)
from penstock.security.scram import (
    ClientFirst,
    Decoys,
    InvalidScram,
    ScramServer,
    nonce_from,
    parse_client_final,
    parse_client_first,
)

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
DECOYS = Decoys(b"secret of the cluster, 32 bytes!")
SALT = bytes(range(32))
ALICE = {
    mechanism: make_credential(mechanism, "alice-secret", SALT) for mechanism in (SHA_256, SHA_512)
}
SERVER_NONCE = nonce_from(bytes(24))
mechanisms = pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])


def find_alice(user: str, mechanism: Mechanism) -> ScramCredential | None:
    return ALICE[mechanism] if user == "alice" else None


def server(mechanism: Mechanism = SHA_256) -> SaslServer:
    return SaslServer(mechanism, ScramServer(mechanism, find_alice, DECOYS, SERVER_NONCE))


# Vectors -----------------------------------------------------------------------------------------

RFC_7677_CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_7677_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def test_the_exchange_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential(SHA_256, "pencil", salt, 4096)
    exchange = ScramServer(SHA_256, lambda *_: credential, DECOYS, RFC_7677_SERVER_NONCE)
    nonce = RFC_7677_CLIENT_NONCE + RFC_7677_SERVER_NONCE
    assert exchange.step(f"n,,n=user,r={RFC_7677_CLIENT_NONCE}".encode()) == Challenge(
        f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.step(f"c=biws,r={nonce},p={proof}".encode()) == Done(
        Principal("User", "user"), b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


# Judges ------------------------------------------------------------------------------------------


def kafka_python_client(user: str, password: str, mechanism: Mechanism) -> Iterator[Any]:
    client = ScramClient(user, password, mechanism.value)
    client.process_server_first_message((yield client.first_message()))
    client.process_server_final_message((yield client.final_message()))


def aiokafka_client(user: str, password: str, mechanism: Mechanism) -> Iterator[Any]:
    client: Any = ScramAuthenticator(
        loop=None,
        sasl_plain_username=user,
        sasl_plain_password=password,
        sasl_mechanism=mechanism.value,
    )
    automaton = client.authenticator_scram()
    data = None
    while True:
        try:
            data = yield automaton.send(data)[0]
        except StopIteration:
            return


def run(client: Any, exchange: SaslServer) -> Done | Refused:
    """Run client and server against each other. The client checks the server's last message."""
    data = client.send(None)
    while True:
        outcome = exchange.step(data)
        if isinstance(outcome, Refused):
            return outcome
        try:
            data = client.send(outcome.data)
        except StopIteration:
            assert isinstance(outcome, Done), "the client is satisfied before the server is"
            return outcome


@mechanisms
@pytest.mark.parametrize("judge", [kafka_python_client, aiokafka_client])
def test_independent_clients_log_in(judge: Any, mechanism: Mechanism) -> None:
    outcome = run(judge("alice", "alice-secret", mechanism), server(mechanism))
    assert isinstance(outcome, Done)
    assert outcome.principal == Principal("User", "alice")
    assert outcome.expires_ms is None


@mechanisms
@pytest.mark.parametrize("judge", [kafka_python_client, aiokafka_client])
@pytest.mark.parametrize(
    ("user", "password"), [("alice", "alice-secreT"), ("bob", "x"), ("Alice", "alice-secret")]
)
def test_independent_clients_with_wrong_credentials_are_refused(
    judge: Any, mechanism: Mechanism, user: str, password: str
) -> None:
    outcome = run(judge(user, password, mechanism), server(mechanism))
    assert isinstance(outcome, Refused)
    assert outcome.message == FAILURE_MESSAGES[mechanism]
    assert outcome.user == user


@settings(max_examples=25, deadline=None)
@given(
    user=st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name and _is_utf8(name)),
    password=st.text('abcXYZ0189 ,=!"', min_size=1, max_size=20),
    salt=st.binary(min_size=1, max_size=40),
    mechanism=st.sampled_from([SHA_256, SHA_512]),
)
def test_any_name_logs_in_with_its_password_only(
    user: str, password: str, salt: bytes, mechanism: Mechanism
) -> None:
    credential = make_credential(mechanism, password, salt)

    def find(name: str, _: Mechanism) -> ScramCredential | None:
        return credential if name == user else None

    for attempt in (password, password + "x"):
        exchange = SaslServer(mechanism, ScramServer(mechanism, find, DECOYS, SERVER_NONCE))
        outcome = run(aiokafka_client(user, attempt, mechanism), exchange)
        assert isinstance(outcome, Done) == (attempt == password)


def _is_utf8(text: str) -> bool:
    try:
        return len(text.encode()) <= 256
    except UnicodeEncodeError:
        return False


# Users who do not exist --------------------------------------------------------------------------


def server_first(user: str, exchange: SaslServer) -> bytes:
    outcome = exchange.step(f"n,,n={user},r=abc".encode())
    assert isinstance(outcome, Challenge)
    return outcome.data


def test_unknown_users_get_a_salt_that_is_stable_on_all_brokers() -> None:
    first = server_first("nobody", server())
    assert first == server_first("nobody", server())
    assert first != server_first("somebody", server())
    assert first != server_first("nobody", server(SHA_512))
    known = server_first("alice", server())
    assert len(first) == len(known)
    assert first.endswith(b",i=4096")
    assert known.endswith(b",i=4096")


def test_knowing_the_decoy_password_does_not_help() -> None:
    """Even if the decoy's keys were those of a password, an unknown user is refused."""

    class KnownDecoys(Decoys):
        def credential(self, user: str, mechanism: Mechanism) -> ScramCredential:  # noqa: ARG002
            return credential_from_salted(mechanism, b"x" * 32, SALT, 4096)

    exchange = SaslServer(
        SHA_256, ScramServer(SHA_256, find_alice, KnownDecoys(b"secret"), SERVER_NONCE)
    )
    client = ScramClient("nobody", "?", SHA_256.value)
    client.create_salted_password = lambda *_: setattr(client, "salted_password", b"x" * 32)
    first = exchange.step(client.first_message())
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.data)
    outcome = exchange.step(client.final_message())
    assert isinstance(outcome, Refused)
    assert outcome.reason == "unknown or disabled user"


# Bad messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=alice",
        b"p=tls-unique,,n=alice,r=abc",
        b"q,,n=alice,r=abc",
        b"n,b=alice,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice=,r=abc",
        b"n,,n=alice=2c,r=abc",
        b"n,,n=alice,r=a\x01bc",
        "n,,n=alice,r=aéc".encode(),
        b"n,,n=al\0ice,r=abc",
        b"n,,n=\xff\xfe,r=abc",
        b"n,,n=alice,r=" + b"a" * 513,
        b"n,,n=" + b"a" * 257 + b",r=abc",
        b"n,,n=alice,r=abc" + b",x=y" * 20,
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,a=bob,n=alice,r=abc",
    ],
)
def test_bad_first_messages_are_refused(message: bytes) -> None:
    outcome = server().step(message)
    assert isinstance(outcome, Refused)
    assert outcome.message == FAILURE_MESSAGES[SHA_256]


def test_what_a_first_message_says() -> None:
    assert parse_client_first(b"y,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=xyz,tokenauth=TRUE,z=1") == ClientFirst(
        gs2_header="y,a=a=2Cb=3Dc,",
        bare="n=a=2Cb=3Dc,r=xyz,tokenauth=TRUE,z=1",
        user="a,b=c",
        authorization_id="a,b=c",
        nonce="xyz",
        token_auth=True,
    )
    assert parse_client_first(b"n,,n=a=3D2C,r=xyz").user == "a=2C"


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"r=", b"r=x", 1),
        lambda final: final.replace(b"c=biws", b"c=eSws", 1),  # y,,
        lambda final: final.replace(b",p=", b",x=1,p=", 1),
        lambda final: final[:-8] + b"AAAA" + final[-4:],
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final.partition(b",p=")[0] + b",p=?",
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: final + b"x",
        lambda final: final[:-2] + bytes([final[-2] + 1]) + b"=",  # spare bits
        lambda final: final.replace(b"c=biws,", b"", 1),
        lambda final: b"\xff" + final,
        lambda final: final[:0],
        lambda final: final[:0] + b"n,,n=alice,r=abc",
    ],
)
def test_changed_final_messages_are_refused(change: Any) -> None:
    exchange = server()
    client = ScramClient("alice", "alice-secret", SHA_256.value)
    first = exchange.step(client.first_message())
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.data)
    assert isinstance(exchange.step(change(client.final_message())), Refused)


def proved(server_first: bytes, first_bare: str, without_proof: str) -> bytes:
    """Return a final message with a right proof, whatever it says before the proof."""
    credential = ALICE[SHA_256]
    salted = salted_password(SHA_256, "alice-secret", credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    message = f"{first_bare},{server_first.decode()},{without_proof}".encode()
    signature = hmac.digest(credential.stored_key, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("header", "binding", "nonce_change", "reason"),
    [
        ("n,,", "biws", "", None),
        ("y,,", "eSws", "", None),
        ("n,a=alice,", "bixhPWFsaWNlLA==", "", None),
        ("n,,", "eSws", "", "channel binding"),
        ("y,,", "biws", "", "channel binding"),
        ("n,,", "bixhPWFsaWNlLA==", "", "channel binding"),
        ("n,,", "biws", "x", "nonce"),  # CVE-2024-56128
    ],
)
def test_a_right_proof_over_a_wrong_message_is_refused(
    header: str, binding: str, nonce_change: str, reason: str | None
) -> None:
    exchange = server()
    first_bare = "n=alice,r=abc"
    first = exchange.step(f"{header}{first_bare}".encode())
    assert isinstance(first, Challenge)
    without_proof = f"c={binding},r=abc{SERVER_NONCE}{nonce_change}"
    outcome = exchange.step(proved(first.data, first_bare, without_proof))
    if reason is None:
        assert isinstance(outcome, Done)
    else:
        assert isinstance(outcome, Refused)
        assert reason in outcome.reason


def test_a_final_message_cannot_be_replayed_in_another_exchange() -> None:
    client = ScramClient("alice", "alice-secret", SHA_256.value)
    exchange = server()
    first = exchange.step(client.first_message())
    assert isinstance(first, Challenge)
    client.process_server_first_message(first.data)
    final = client.final_message()
    assert isinstance(exchange.step(final), Done)
    assert isinstance(exchange.step(final), Refused), "the exchange is over"
    other = SaslServer(
        SHA_256, ScramServer(SHA_256, find_alice, DECOYS, nonce_from(bytes([1] * 24)))
    )
    assert isinstance(other.step(f"n,,n=alice,r={client.nonce.decode()[:32]}".encode()), Challenge)
    assert isinstance(other.step(final), Refused)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_random_bytes_never_log_in_and_never_raise(messages: list[bytes]) -> None:
    exchange = server()
    for message in messages:
        assert not isinstance(exchange.step(message), Done)


@given(
    st.text("nyp,=abcr2CD3m\0é", max_size=60).map(str.encode)
    | st.text(max_size=60).filter(_is_utf8).map(str.encode)
)
def test_parsers_raise_nothing_but_their_own_error(data: bytes) -> None:
    for parse in (parse_client_first, parse_client_final):
        try:
            parse(data)
        except InvalidScram:
            pass


def test_messages_and_steps_are_limited() -> None:
    limited = SaslServer(SHA_256, ScramServer(SHA_256, find_alice, DECOYS, "x"), 10)
    outcome = limited.step(b"n,,n=alice,r=abc")
    assert isinstance(outcome, Refused)
    assert outcome.reason == "message of 16 bytes; the limit is 10"

    class Endless:
        def step(self, data: bytes) -> Challenge:
            return Challenge(data)

    endless = SaslServer(SHA_256, Endless())
    outcomes = [endless.step(b"x") for _ in range(10)]
    assert [type(outcome) for outcome in outcomes] == [Challenge] * 4 + [Refused] * 6
