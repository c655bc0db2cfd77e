import asyncio

import pytest

from penstock.kafka.handlers import find_coordinator
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.support.context import ADDRESS, BROKER_ID, BrokerContext

GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.mark.parametrize("version", range(4))
def test_this_broker_coordinates_every_group(broker: BrokerContext, version: int) -> None:
    answer = broker.ask(FindCoordinatorRequest(key="readers"), version)
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, BROKER_ID)
    assert (answer.host, answer.port) == ADDRESS


@pytest.mark.parametrize("version", range(4, 7))
def test_several_groups_are_answered_at_once(broker: BrokerContext, version: int) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.GROUP, "secret")
    request = FindCoordinatorRequest(coordinator_keys=["readers", "secret"])
    readers, secret = broker.ask(request, version).coordinators
    assert (readers.key, readers.node_id, readers.error_message) == ("readers", BROKER_ID, None)
    assert (secret.key, secret.node_id) == ("secret", -1)
    assert secret.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_many_long_keys_leave_others_their_turn(broker: BrokerContext) -> None:
    broker.ask(FindCoordinatorRequest(key="readers"), 3)
    request = FindCoordinatorRequest(coordinator_keys=["x" * 32_767] * 10)
    turns: list[None] = []

    async def ask() -> None:
        context = broker.context(ApiKey.FIND_COORDINATOR, 4)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(find_coordinator.handle(request, context))
            while not asked.done():
                turns.append(None)
                await asyncio.sleep(0)

    broker.run(ask())
    assert len(turns) >= 5


@pytest.mark.parametrize("version", range(1, 4))
def test_this_broker_coordinates_every_transactional_id(
    broker: BrokerContext, version: int
) -> None:
    request = FindCoordinatorRequest(key="tx", key_type=TRANSACTION)
    answer = broker.ask(request, version)
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, BROKER_ID)
    assert "__transaction_state" in broker.cluster.image.topics
    broker.forbid(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "tx")
    answer = broker.ask(request, version)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("key_type", [SHARE, 9])
def test_other_coordinators_are_unknown(broker: BrokerContext, key_type: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type)
    (answer,) = broker.ask(request).coordinators
    assert answer.error_code == ErrorCode.INVALID_REQUEST
