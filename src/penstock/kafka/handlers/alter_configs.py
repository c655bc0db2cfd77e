"""AlterConfigs: what is given becomes all that is set; what is left out goes back to its default."""

from collections import Counter

from penstock.kafka.config_resources import authorize_settings
from penstock.kafka.context import Context
from penstock.kafka.security import Operation
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    counts = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    return AlterConfigsResponse(
        responses=[
            await _replace(
                asked,
                request,
                context,
                is_repeated=counts[asked.resource_type, asked.resource_name] > 1,
            )
            for asked in request.resources
        ]
    )


def refuse(request: AlterConfigsRequest, error: BrokerError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_answer(asked, error) for asked in request.resources])


async def _replace(
    asked: AlterConfigsResource,
    request: AlterConfigsRequest,
    context: Context,
    *,
    is_repeated: bool,
) -> AlterConfigsResourceResponse:
    name = asked.resource_name
    try:
        owner = authorize_settings(Operation.ALTER_CONFIGS, asked.resource_type, name, context)
        if is_repeated:
            raise BrokerError("a resource is named more than once", ErrorCode.INVALID_REQUEST)
        await context.cluster.replace_configs(
            owner,
            name,
            [(config.name, config.value) for config in asked.configs],
            validate_only=request.validate_only,
        )
    except BrokerError as error:
        return _answer(asked, error)
    return _answer(asked, None)


def _answer(asked: AlterConfigsResource, error: BrokerError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )
