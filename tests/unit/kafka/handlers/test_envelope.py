"""What came to another broker is carried out here, for whoever asked there; and the way back."""

from typing import Any

import pytest

from penstock.kafka.apis import APIS
from penstock.kafka.context import Context
from penstock.kafka.security import ANONYMOUS, Operation, Principal, ResourceType
from penstock.metadata.store import NO_REVISION
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.header import RequestHeader, decode_response_header, encode_request_header
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.schema import Message
from tests.support.context import BrokerContext

ALICE = Principal("User", "alice")
CREATION = CreateTopicsRequest(
    topics=[CreatableTopic(name="orders", num_partitions=2, replication_factor=-1)]
)


def enveloped(message: Message, version: int, principal: Principal = ALICE) -> EnvelopeRequest:
    header = RequestHeader(message.api_key, version, 42, "client")
    return EnvelopeRequest(
        request_data=encode_request_header(header) + message.encode(version),
        request_principal=str(principal).encode(),
        client_host_address=bytes([10, 0, 0, 9]),
    )


def opened(answer: EnvelopeResponse, version: int) -> CreateTopicsResponse:
    assert answer.error_code == ErrorCode.NONE
    assert answer.response_data is not None
    frame = memoryview(answer.response_data)
    correlation_id, start = decode_response_header(frame, CREATION.api_key, version)
    assert correlation_id == 42
    return CreateTopicsResponse.decode(frame[start:], version)


@pytest.mark.parametrize("version", [4, 7])
def test_the_request_inside_is_carried_out_and_answered_in_its_own_version(
    broker: BrokerContext, version: int
) -> None:
    response = opened(broker.ask(enveloped(CREATION, version)), version)
    assert [(it.name, it.error_code) for it in response.topics] == [("orders", 0)]
    assert len(broker.cluster.image.topics["orders"].partitions) == 2


def test_rights_are_those_of_who_asked_and_the_broker_needs_its_own(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[Principal, Operation]] = set()

    def allows(principal: Principal, operation: Operation, *_: object) -> bool:
        asked.add((principal, operation))
        return operation is Operation.CLUSTER_ACTION

    monkeypatch.setattr(broker.rules, "allows", allows)
    response = opened(broker.ask(enveloped(CREATION, 7)), 7)
    assert response.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert asked == {(ANONYMOUS, Operation.CLUSTER_ACTION), (ALICE, Operation.CREATE)}


def test_only_brokers_may_forward(broker: BrokerContext) -> None:
    broker.forbid(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    answer = broker.ask(enveloped(CREATION, 7))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_what_every_broker_answers_itself_is_not_forwarded(broker: BrokerContext) -> None:
    assert broker.ask(enveloped(MetadataRequest(), 9)).error_code == ErrorCode.INVALID_REQUEST
    unknown = EnvelopeRequest(request_data=encode_request_header(RequestHeader(999, 0, 1, None)))
    assert broker.ask(unknown).error_code == ErrorCode.INVALID_REQUEST
    old = enveloped(CREATION, 7)
    header = encode_request_header(RequestHeader(CREATION.api_key, 99, 1, None))
    old.request_data = header
    assert broker.ask(old).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_fault_inside_is_answered_as_its_own_api_does(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broker.cluster, "create_topics", fail)
    response = opened(broker.ask(enveloped(CREATION, 7)), 7)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "request-failed" in caplog.text


class Elsewhere:
    """The office is another broker's, which answers envelopes as this one would."""

    def __init__(self, broker: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self._committer = broker.cluster._committer
        self._epoch = self._committer.controller_epoch
        self.envelopes: list[EnvelopeRequest] = []
        self.error: ErrorCode | None = None
        self.comes_home = False
        monkeypatch.setattr(broker.cluster, "ask_controller", self.ask)
        monkeypatch.setattr(self._committer, "controller_epoch", NO_REVISION)

    async def ask(
        self, message: Message, _: type[Message], *, timeout_ms: int, lane: str
    ) -> Message | None:
        assert isinstance(message, EnvelopeRequest)
        assert timeout_ms > 0
        assert lane == "forward"
        self.envelopes.append(message)
        if self.error is not None:
            return EnvelopeResponse(error_code=self.error)
        self._committer.controller_epoch = self._epoch
        if self.comes_home:
            return None
        try:
            context = self._broker.context(message.api_key, 0)
            handled: Any = APIS[message.api_key].handle(message, context)
            answer: Message = await handled
        finally:
            self._committer.controller_epoch = NO_REVISION
        return answer


@pytest.mark.parametrize("comes_home", [False, True])
def test_a_broker_that_is_not_the_controller_forwards_and_knows_the_effect_when_it_answers(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch, comes_home: bool
) -> None:
    elsewhere = Elsewhere(broker, monkeypatch)
    elsewhere.comes_home = comes_home
    answer = broker.ask(CREATION)
    assert [it.error_code for it in answer.topics] == [0]
    assert "orders" in broker.cluster.image.topics
    (sent,) = elsewhere.envelopes
    assert sent.request_principal == b"User:ANONYMOUS"
    assert sent.client_host_address == bytes([127, 0, 0, 1])


def test_what_the_controller_refuses_whole_is_refused_in_the_form_of_the_request(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Elsewhere(broker, monkeypatch)
    elsewhere.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = broker.ask(CREATION)
    assert answer.topics[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_an_envelope_for_a_controller_that_lost_the_office_is_refused(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.cluster._committer, "controller_epoch", NO_REVISION)
    assert broker.ask(enveloped(CREATION, 7)).error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("host", ["fe80::1%eth0", "", "::1"])
def test_any_address_of_a_client_can_be_forwarded(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    elsewhere = Elsewhere(broker, monkeypatch)
    seen: list[str] = []

    async def handle(_: object, context: Context) -> Any:
        seen.append(context.client_host)
        raise BrokerError("enough")

    api = APIS[CREATION.api_key]
    monkeypatch.setattr(api, "carry_out", handle)
    context = broker.context(CREATION.api_key, 7)
    context.client_host = host
    forwarding: Any = api.handle(CREATION, context)
    broker.run(forwarding)
    assert seen == [host.partition("%")[0]]
    assert len(elsewhere.envelopes) == 1
