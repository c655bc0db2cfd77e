"""ApiVersions: what this broker speaks. The first request of nearly every client."""

import re
from typing import Final

from penstock.kafka.context import Context
from penstock.metadata.rules.feature_levels import in_force
from penstock.model.errors import ErrorCode
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

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
    image = context.cluster.image
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=least, max_version=most)
            for name, (least, most) in context.cluster.supported.items()
            if least > 0 or context.version >= _FROM_ZERO_SINCE
        ],
        finalized_features_epoch=image.features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in in_force(image).items()
            if level > 0  # 0 is off, and is not told (KIP-584)
        ],
    )
