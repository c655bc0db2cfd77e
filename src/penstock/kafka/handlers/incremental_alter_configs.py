"""IncrementalAlterConfigs: single settings are set, deleted, extended or cut; the others stay."""

from collections import Counter

from penstock.kafka.config_resources import authorize_settings
from penstock.kafka.context import Context
from penstock.kafka.security import Operation
from penstock.metadata.rules.config_changes import ConfigOp, Op
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    request: IncrementalAlterConfigsRequest, context: Context
) -> IncrementalAlterConfigsResponse:
    counts = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter(
                asked,
                request,
                context,
                is_repeated=counts[asked.resource_type, asked.resource_name] > 1,
            )
            for asked in request.resources
        ]
    )


def refuse(
    request: IncrementalAlterConfigsRequest, error: BrokerError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_answer(asked, error) for asked in request.resources]
    )


async def _alter(
    asked: AlterConfigsResource,
    request: IncrementalAlterConfigsRequest,
    context: Context,
    *,
    is_repeated: bool,
) -> AlterConfigsResourceResponse:
    name = asked.resource_name
    try:
        owner = authorize_settings(Operation.ALTER_CONFIGS, asked.resource_type, name, context)
        if is_repeated:
            raise BrokerError("a resource is named more than once", ErrorCode.INVALID_REQUEST)
        await context.cluster.alter_configs(
            owner,
            name,
            [_op(config) for config in asked.configs],
            validate_only=request.validate_only,
        )
    except BrokerError as error:
        return _answer(asked, error)
    return _answer(asked, None)


def _op(config: AlterableConfig) -> ConfigOp:
    if config.config_operation not in Op.__members__.values():
        raise BrokerError(
            f"{config.name}: unknown operation {config.config_operation};"
            " 0 sets, 1 deletes, 2 appends, 3 subtracts",
            ErrorCode.INVALID_REQUEST,
        )
    return ConfigOp(config.name, Op(config.config_operation), config.value)


def _answer(asked: AlterConfigsResource, error: BrokerError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )
