"""DeleteAcls: a broker without an authoriser has no rules to remove, and says so as Kafka does."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    raise BrokerError("no authorizer is configured on this broker", ErrorCode.SECURITY_DISABLED)


def refuse(request: DeleteAclsRequest, error: BrokerError) -> DeleteAclsResponse:
    refusal = DeleteAclsFilterResult(error_code=error.code, error_message=str(error))
    return DeleteAclsResponse(filter_results=[refusal for _ in request.filters])
