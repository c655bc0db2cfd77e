"""DescribeAcls: a broker without an authoriser has no rules to show, and says so as Kafka does."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    raise BrokerError("no authorizer is configured on this broker", ErrorCode.SECURITY_DISABLED)
