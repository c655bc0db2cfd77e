from collections.abc import Iterator

import pytest

from penstock.kafka.apis import APIS
from penstock.model.errors import ErrorCode
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.context import BrokerContext
from tests.support.wired import Client, door_to


@pytest.fixture
def client(broker: BrokerContext) -> Iterator[Client]:
    with door_to(broker) as door:
        yield door.connect()


def spoken(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


TABLE = {key: (api.min_version, api.max_version) for key, api in APIS.items()}


@pytest.mark.parametrize("version", range(5))
def test_every_version_tells_of_all_that_the_table_of_apis_holds(
    broker: BrokerContext, version: int
) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    answered = broker.ask(request, version)
    assert answered.error_code == ErrorCode.NONE
    assert spoken(answered) == TABLE
    assert list(spoken(answered)) == sorted(TABLE)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("librdkafka", 0),
        ("a", 0),
        ("apache-kafka.java", 0),
        ("", ErrorCode.INVALID_REQUEST),
        ("-kafka", ErrorCode.INVALID_REQUEST),
        ("kafka.", ErrorCode.INVALID_REQUEST),
        ("two words", ErrorCode.INVALID_REQUEST),
        ("k\n", ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_name_of_the_client_must_be_one(broker: BrokerContext, name: str, code: int) -> None:
    for fields in ((name, "1.0"), ("fine", name)):
        request = ApiVersionsRequest(
            client_software_name=fields[0], client_software_version=fields[1]
        )
        assert broker.ask(request, 3).error_code == code
        assert broker.ask(request, 2).error_code == ErrorCode.NONE, "it is not told"


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_a_version_that_is_not_known_is_answered_in_the_oldest_form_with_what_is(
    client: Client, version: int
) -> None:
    """KIP-511: the client tries again with a version that both know."""
    body = ApiVersionsRequest(client_software_name="test", client_software_version="1").encode(3)
    header = ApiKey.API_VERSIONS.to_bytes(2, "big") + version.to_bytes(2, "big")
    frame = header + (42).to_bytes(4, "big") + b"\xff\xff\0" + body
    client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
    (answer,) = client.frames(1)
    assert answer[:4] == (42).to_bytes(4, "big"), "a header without tags"
    response = ApiVersionsResponse.decode(memoryview(answer)[4:], 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert spoken(response) == TABLE
    assert client.is_connected


def test_the_header_of_the_answer_never_has_tags(client: Client) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    client.send(request, 4, 7)
    correlation_id, response = client.receive_as(ApiVersionsResponse, 4)
    assert (correlation_id, response.error_code) == (7, 0)
