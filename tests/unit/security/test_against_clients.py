"""librdkafka, kafka-python and aiokafka log in over a socket, with every mechanism."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from penstock.security.credentials import ScramCredential, make_credential
from penstock.security.jws import InvalidToken
from penstock.security.oauthbearer import OauthBearerServer
from penstock.security.plain import PasswordChecker, PlainServer
from penstock.security.resources import Principal
from penstock.security.sasl import FAILURE_MESSAGES, Mechanism, Refused
from penstock.security.scram import Decoys, ScramServer, nonce_from
from penstock.security.tokens import AccessToken
from tests.unit.security.login_server import LoginServer, MakeExchange, login_server

PASSWORD = "alice-secret"
DECOYS = Decoys(b"secret")
SCRAM = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
CREDENTIALS = {mechanism: make_credential(mechanism, PASSWORD, b"salt" * 8) for mechanism in SCRAM}
with_passwords = pytest.mark.parametrize("mechanism", [Mechanism.PLAIN, *SCRAM])


def find(user: str, mechanism: Mechanism) -> ScramCredential | None:
    return CREDENTIALS[mechanism] if user == "alice" else None


def verify(token: bytes) -> AccessToken:
    if token != b"good.token":
        raise InvalidToken("the signature is wrong")
    return AccessToken(Principal("User", "alice"), 2**50)


def scram(mechanism: Mechanism) -> ScramServer:
    return ScramServer(mechanism, find, DECOYS, nonce_from(b"n" * 24))


@pytest.fixture
def server() -> Iterator[LoginServer]:
    checker = PasswordChecker(find, DECOYS, b"key")
    mechanisms: dict[Mechanism, MakeExchange] = {
        Mechanism.PLAIN: lambda: PlainServer(checker.check),
        SCRAM[0]: lambda: scram(SCRAM[0]),
        SCRAM[1]: lambda: scram(SCRAM[1]),
        Mechanism.OAUTHBEARER: lambda: OauthBearerServer(verify),
    }
    with login_server(mechanisms) as started:
        yield started


def librdkafka(server: LoginServer, mechanism: Mechanism, **settings: Any) -> list[str]:
    """Connect until metadata is there or an error is reported. Return the errors."""
    errors: list[str] = []
    config: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{server.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism.value,
        "error_cb": lambda error: errors.append(error.str()),
        "log_level": 0,
        **settings,
    }
    client = AdminClient(config)
    for _ in range(50):
        client.poll(0.1)  # calls oauth_cb and error_cb
        if errors:
            return errors
        try:
            assert list(client.list_topics(timeout=0.1).brokers) == [1]
        except KafkaException:
            continue
        return errors
    raise AssertionError("neither logged in nor refused")


@with_passwords
def test_librdkafka_logs_in(server: LoginServer, mechanism: Mechanism) -> None:
    settings = {"sasl.username": "alice", "sasl.password": PASSWORD}
    assert librdkafka(server, mechanism, **settings) == []
    assert Principal("User", "alice") in [done.principal for done in server.done()]


@with_passwords
def test_librdkafka_with_a_wrong_password_reads_our_text(
    server: LoginServer, mechanism: Mechanism
) -> None:
    settings = {"sasl.username": "alice", "sasl.password": "wrong"}
    errors = librdkafka(server, mechanism, **settings)
    assert any(FAILURE_MESSAGES[mechanism] in error for error in errors), errors
    assert server.done() == []


def test_librdkafka_logs_in_with_a_token(server: LoginServer) -> None:
    settings = {"oauth_cb": lambda _: ("good.token", 2**31)}
    assert librdkafka(server, Mechanism.OAUTHBEARER, **settings) == []
    assert server.done()[0].principal == Principal("User", "alice")


def test_librdkafka_with_a_wrong_token_is_refused(server: LoginServer) -> None:
    errors = librdkafka(server, Mechanism.OAUTHBEARER, oauth_cb=lambda _: ("bad.token", 2**31))
    assert any("OAUTHBEARER" in error for error in errors), errors
    assert server.done() == []
    assert any(isinstance(outcome, Refused) for outcome in server.outcomes)


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def token(self) -> str:
        return "good.token"

    def extensions(self) -> dict[str, str]:
        return {}


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_kafka_python_logs_in(server: LoginServer, mechanism: Mechanism) -> None:
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(
        bootstrap_servers=f"127.0.0.1:{server.port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism.value,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
        sasl_oauth_token_provider=Provider(),
    )
    client.close()
    assert server.done()[0].principal == Principal("User", "alice")


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_aiokafka_logs_in(server: LoginServer, mechanism: Mechanism) -> None:
    from aiokafka.abc import AbstractTokenProvider as AsyncProvider
    from aiokafka.client import AIOKafkaClient

    class AsyncToken(AsyncProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return "good.token"

    async def log_in() -> None:
        client = AIOKafkaClient(
            bootstrap_servers=f"127.0.0.1:{server.port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism.value,
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
            sasl_oauth_token_provider=AsyncToken(),
        )
        await client.bootstrap()
        await client.close()

    asyncio.run(log_in())
    assert server.done()[0].principal == Principal("User", "alice")


@pytest.mark.slow
@with_passwords
def test_librdkafka_authenticates_again_before_its_session_ends(
    server: LoginServer, mechanism: Mechanism
) -> None:
    server.lifetime_ms = 1000
    client = AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{server.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism.value,
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
    )
    for _ in range(30):
        client.poll(0.1)
        client.list_topics(timeout=5)
        if len(server.done()) > 2 * len(server.sockets):
            return
    raise AssertionError(f"{len(server.done())} logins on {len(server.sockets)} connections")
