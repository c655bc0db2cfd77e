"""ApiVersions: what this broker speaks. The first request of nearly every client."""

import re
from typing import Final

from penstock.kafka.context import Context
from penstock.model.errors import ErrorCode
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_FEATURES: Final = {"transaction.version": (0, 2)}  # O9: what is supported; the highest is in force
_FROM_ZERO_SINCE: Final = 4  # before, clients take a feature whose least level is 0 for an error
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511


def handle(
    request: ApiVersionsRequest, context: Context, api_keys: list[ApiVersion]
) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=api_keys)
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=least, max_version=most)
            for name, (least, most) in _FEATURES.items()
            if least > 0 or context.version >= _FROM_ZERO_SINCE
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=most, min_version_level=most)
            for name, (_, most) in _FEATURES.items()
        ],
    )
