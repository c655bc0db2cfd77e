import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_cluster import DescribeClusterRequest
from tests.support.context import ADDRESS, BROKER_ID, LISTENER, BrokerContext

NOT_ASKED = -(2**31)


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_this_broker_as_clients_reach_it(
    broker: BrokerContext, version: int
) -> None:
    answer = broker.ask(DescribeClusterRequest(), version)
    (itself,) = answer.brokers
    assert (itself.broker_id, itself.host, itself.port) == (BROKER_ID, *ADDRESS)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert answer.controller_id == BROKER_ID
    assert answer.cluster_id == broker.cluster.cluster_id
    assert answer.cluster_authorized_operations == NOT_ASKED


def test_operations_are_shown_to_who_may_describe_the_cluster(broker: BrokerContext) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert broker.ask(request).cluster_authorized_operations & (1 << Operation.DESCRIBE)
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    assert broker.ask(request).cluster_authorized_operations == 0


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_an_endpoint_for_controllers_is_not_offered(
    broker: BrokerContext, endpoint_type: int, code: ErrorCode
) -> None:
    answer = broker.ask(DescribeClusterRequest(endpoint_type=endpoint_type))
    assert answer.error_code == code
    assert answer.error_message


def test_brokers_that_do_not_take_part_are_told_to_who_asks_for_them(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = broker.cluster.image.brokers[BROKER_ID]._replace(
        id=9, epoch=0, listeners={}, fenced=True, rack="r"
    )
    starting = away._replace(id=10, listeners={LISTENER: ADDRESS})
    monkeypatch.setitem(broker.cluster.image.brokers, 9, away)
    monkeypatch.setitem(broker.cluster.image.brokers, 10, starting)
    assert [it.broker_id for it in broker.ask(DescribeClusterRequest()).brokers] == [BROKER_ID]
    answer = broker.ask(DescribeClusterRequest(include_fenced_brokers=True))
    assert [(it.broker_id, it.host, it.port, it.is_fenced) for it in answer.brokers] == [
        (BROKER_ID, *ADDRESS, False),
        (9, "", -1, True),
        (10, *ADDRESS, True),
    ]
