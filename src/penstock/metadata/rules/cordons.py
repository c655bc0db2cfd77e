"""Brokers that get no new replicas, by Kafka's own setting (KIP-1066): those that are to leave the cluster.

What they have stays, and can be moved away. There is one data directory to a broker, so that it is all or nothing.
"""

from collections.abc import Iterable
from typing import Final

from penstock.metadata.image import ClusterImage
from penstock.metadata.store import Delete, Put, Write
from penstock.metadata.values import broker_config_key, encode

CORDON: Final = "cordoned.log.dirs"


def is_cordoned(image: ClusterImage, broker_id: int) -> bool:
    """By what was set at run time; else by the broker's own file, as it announced."""
    at_run_time = image.broker_configs.get(str(broker_id), {}).get(CORDON)
    if at_run_time is not None:
        return bool(at_run_time)
    live = image.live.get(broker_id)
    return live is not None and live.is_cordoned


def cordoned(image: ClusterImage, broker_ids: Iterable[int]) -> list[int]:
    return [broker_id for broker_id in broker_ids if is_cordoned(image, broker_id)]


def cordon_removed(image: ClusterImage, broker_id: int) -> tuple[str, Write] | None:
    """Of a broker that is struck off: who has its number later is another one. The key, and what to write there."""
    settings = image.broker_configs.get(str(broker_id), {})
    if CORDON not in settings:
        return None
    key = broker_config_key(str(broker_id))
    kept = {name: value for name, value in settings.items() if name != CORDON}
    return key, Put(key, encode(set=kept)) if kept else Delete(key)
