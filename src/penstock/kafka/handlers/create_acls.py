"""CreateAcls: a broker without an authoriser keeps no rules, and says so as Kafka does."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    raise BrokerError("no authorizer is configured on this broker", ErrorCode.SECURITY_DISABLED)


def refuse(request: CreateAclsRequest, error: BrokerError) -> CreateAclsResponse:
    refusal = AclCreationResult(error_code=error.code, error_message=str(error))
    return CreateAclsResponse(results=[refusal for _ in request.creations])
