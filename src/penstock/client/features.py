"""The levels of features that are in force in a cluster, what its brokers support, and how levels are changed."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock import __version__
from penstock.client.errors import check
from penstock.client.pool import AnyBroker, Broker, Pool
from penstock.model.features import Levels, Ranges, range_of
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


class Features(NamedTuple):
    """What is not in `levels` is off."""

    epoch: int
    levels: Mapping[str, int]
    supported: Mapping[int, Ranges]  # by broker, of those that run

    @property
    def names(self) -> list[str]:
        return sorted({*self.levels, *(name for it in self.supported.values() for name in it)})

    def highest(self, name: str) -> int:
        """That all brokers that run support."""
        return min(range_of(name, ranges).most for ranges in self.supported.values())


async def describe(pool: Pool) -> Features:
    """Asked of each broker for itself; the newest of what they say is in force."""
    answers = {broker_id: await _ask(pool, broker_id) for broker_id in await pool.broker_ids()}
    newest = max(answers.values(), key=lambda answer: answer.finalized_features_epoch)
    return Features(
        newest.finalized_features_epoch,
        {it.name: it.max_version_level for it in newest.finalized_features},
        {
            broker_id: {
                it.name: Levels(it.min_version, it.max_version) for it in answer.supported_features
            }
            for broker_id, answer in answers.items()
        },
    )


async def _ask(pool: Pool, broker_id: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(
        client_software_name="penstock", client_software_version=__version__
    )
    return await pool.ask(
        Broker(broker_id),
        request,
        ApiVersionsResponse,
        check=lambda answer: check(answer.error_code, None, f"broker {broker_id}"),
    )


async def update(
    pool: Pool, levels: Mapping[str, int], kind: int, *, validate_only: bool = False
) -> None:
    """All of them, or none: then it raises with the reason."""
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    await pool.ask(AnyBroker(), request, UpdateFeaturesResponse, check=_check)


def _check(answer: UpdateFeaturesResponse) -> None:
    check(answer.error_code, answer.error_message, "features")
    for result in answer.results:
        check(result.error_code, result.error_message, result.feature)
