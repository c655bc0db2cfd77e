"""Settings of topics and brokers, asked for and changed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.client.errors import check
from penstock.client.pool import AnyBroker, Broker, Controller, Pool
from penstock.model.errors import ErrorCode
from penstock.wire.messages import describe_configs as described
from penstock.wire.messages import incremental_alter_configs as alter

TOPIC: Final = 2  # kinds of resources
BROKER: Final = 4
SET_FOR_TOPIC: Final = 1  # sources of settings
SET_FOR_BROKER: Final = 2

_SET: Final = 0
_DELETE: Final = 1

Resource = tuple[int, str]
Settings = dict[str, str]


async def describe(
    pool: Pool,
    target: AnyBroker | Broker,
    resources: Iterable[Resource],
    keys: Sequence[str] | None,
    source: int | None = None,
) -> dict[Resource, Settings]:
    """The settings (None: all) that were made in one place (None: anywhere). A topic that is gone is left out."""
    asked = [
        described.DescribeConfigsResource(
            resource_type=kind,
            resource_name=name,
            configuration_keys=None if keys is None else list(keys),
        )
        for kind, name in resources
    ]
    answer = await pool.ask(
        target,
        described.DescribeConfigsRequest(resources=asked),
        described.DescribeConfigsResponse,
        timeout_ms=10_000,
    )
    found: dict[Resource, Settings] = {}
    for result in answer.results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        check(result.error_code, result.error_message, result.resource_name)
        settings = {
            row.name: row.value
            for row in result.configs
            if row.value and source in (None, row.config_source)
        }
        if settings:
            found[result.resource_type, result.resource_name] = settings
    return found


async def change(pool: Pool, changes: Mapping[Resource, Mapping[str, str | None]]) -> None:
    """None: back to the default."""
    if not changes:
        return
    resources = [
        alter.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                alter.AlterableConfig(
                    name=key, config_operation=_DELETE if value is None else _SET, value=value
                )
                for key, value in settings.items()
            ],
        )
        for (kind, name), settings in changes.items()
    ]

    def accept(answer: alter.IncrementalAlterConfigsResponse) -> None:
        for result in answer.responses:
            if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(result.error_code, result.error_message, result.resource_name)

    await pool.ask(
        Controller(),
        alter.IncrementalAlterConfigsRequest(resources=resources),
        alter.IncrementalAlterConfigsResponse,
        check=accept,
    )
