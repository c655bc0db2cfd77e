from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.create_acls import AclCreation, CreateAclsRequest
from penstock.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.wire.messages.describe_acls import DescribeAclsRequest
from tests.support.context import BrokerContext


def codes(broker: BrokerContext) -> set[int]:
    """Of every answer that a request about rules can have."""
    described = broker.ask(DescribeAclsRequest())
    created = broker.ask(CreateAclsRequest(creations=[AclCreation(), AclCreation()]))
    deleted = broker.ask(DeleteAclsRequest(filters=[DeleteAclsFilter()]))
    assert (len(created.results), len(deleted.filter_results)) == (2, 1)
    answers = [described, *created.results, *deleted.filter_results]
    assert all(answer.error_message for answer in answers)
    return {answer.error_code for answer in answers}


def test_rules_are_refused_because_there_is_no_authorizer(broker: BrokerContext) -> None:
    assert codes(broker) == {ErrorCode.SECURITY_DISABLED}


def test_rules_need_rights_on_the_cluster(broker: BrokerContext) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    assert codes(broker) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
