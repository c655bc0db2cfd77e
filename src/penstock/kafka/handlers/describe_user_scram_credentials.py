"""DescribeUserScramCredentials: no credentials are kept yet, so no user is found."""

from collections import Counter

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    asked = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_answer(user, count) for user, count in asked.items()]
    )


def _answer(user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"user '{user}' is named {count} times"
    else:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"user '{user}' has no SCRAM credentials"
    return DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=message)
