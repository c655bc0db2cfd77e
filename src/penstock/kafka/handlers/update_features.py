"""UpdateFeatures: the levels in force are raised or lowered, all that are asked for or none (KIP-584, KIP-1022)."""

from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.metadata.rules.feature_levels import LevelChange, LevelsRefused, UpgradeType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_ONE_CODE_SINCE: Final = 2  # and none for each feature


async def handle(request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    try:
        await context.cluster.update_features(
            [_change(asked) for asked in request.feature_updates],
            validate_only=request.validate_only,
            timeout_ms=patience_ms(request.timeout_ms),
        )
    except LevelsRefused as refused:
        if context.version >= _ONE_CODE_SINCE:
            raise
        return _response(request, refused)
    return _response(request, None)


def _change(asked: FeatureUpdateKey) -> LevelChange:
    kind = UpgradeType.SAFE_DOWNGRADE if asked.allow_downgrade else asked.upgrade_type
    return LevelChange(asked.feature, asked.max_version_level, kind)


def _response(
    request: UpdateFeaturesRequest, refused: LevelsRefused | None
) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_message=None,
        results=[_result(asked.feature, refused) for asked in request.feature_updates],
    )


def _result(feature: str, refused: LevelsRefused | None) -> UpdatableFeatureResult:
    if refused is None:
        return UpdatableFeatureResult(feature=feature, error_message=None)
    error = refused.errors.get(feature) or BrokerError(
        f"{feature}: not changed, because another feature of the request was refused: {refused}",
        ErrorCode.FEATURE_UPDATE_FAILED,
    )
    return UpdatableFeatureResult(feature=feature, error_code=error.code, error_message=str(error))
