"""DescribeClientQuotas: no quotas can be set yet, so every well-formed filter finds none."""

from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


def handle(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    context.authorize(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    seen: set[str] = set()
    for component in request.components:
        _check(component)
        if component.entity_type in seen:
            raise _invalid(f"the filter names the entity type '{component.entity_type}' twice")
        seen.add(component.entity_type)
    if "ip" in seen and len(seen) > 1:
        raise _invalid("a filter for ip cannot be combined with one for user or client-id")
    return DescribeClientQuotasResponse(error_message=None)


def refuse(
    request: DescribeClientQuotasRequest, error: BrokerError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=error.code, error_message=str(error), entries=None
    )


def _check(component: ComponentData) -> None:
    if component.entity_type not in _ENTITY_TYPES:
        raise BrokerError(
            f"unknown entity type '{component.entity_type}'; use {', '.join(_ENTITY_TYPES)}",
            ErrorCode.UNSUPPORTED_VERSION if component.entity_type else ErrorCode.INVALID_REQUEST,
        )
    if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
        raise _invalid(f"unknown match type {component.match_type}")
    if (component.match is None) is (component.match_type == _EXACT):
        raise _invalid("an exact match needs a name to match, and the other match types take none")


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REQUEST)
