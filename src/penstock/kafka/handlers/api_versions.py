"""ApiVersions: what this broker speaks. The first request of nearly every client."""

import re

from penstock.kafka.context import Context
from penstock.model.errors import ErrorCode
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511


def handle(
    request: ApiVersionsRequest, context: Context, api_keys: list[ApiVersion]
) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=api_keys)
    return ApiVersionsResponse(api_keys=api_keys, finalized_features_epoch=0)
