from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from tests.support.context import BrokerContext, broker_context

IDEMPOTENT = InitProducerIdRequest(transactional_id=None)


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_an_id_and_epoch_zero(broker: BrokerContext, version: int) -> None:
    answer = broker.ask(IDEMPOTENT, version)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
    assert answer.producer_id >= 0


def test_no_id_is_given_twice_not_even_after_a_restart(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with broker_context(tmp_path) as broker:
            ids += [broker.ask(IDEMPOTENT).producer_id for _ in range(1200)]
    assert len(set(ids)) == len(ids)


def test_a_producer_that_lost_its_state_gets_a_new_id(broker: BrokerContext) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=0, producer_epoch=3)
    first = broker.ask(IDEMPOTENT).producer_id
    assert broker.ask(request).producer_id > first


def test_an_id_without_an_epoch_is_refused(broker: BrokerContext) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=5)
    assert broker.ask(request).error_code == ErrorCode.INVALID_REQUEST


def test_who_may_not_write_transactions_hears_that_first(broker: BrokerContext) -> None:
    broker.forbid(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx")
    answer = broker.ask(InitProducerIdRequest(transactional_id="tx"))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_who_may_write_to_some_topic_may_do_it_idempotently(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.allow_only()
    assert broker.ask(IDEMPOTENT).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    broker.allow_only((Operation.WRITE, ResourceType.TOPIC, "orders"))
    assert broker.ask(IDEMPOTENT).error_code == ErrorCode.NONE
    broker.allow_only((Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "*"))
    assert broker.ask(IDEMPOTENT).error_code == ErrorCode.NONE
