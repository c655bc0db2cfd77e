"""KIP-951: who is told that it asked the wrong broker is told the right one in the same answer."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.kafka.context import Context
from penstock.model.errors import ErrorCode

MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class Leader(NamedTuple):
    broker_id: int
    epoch: int


class Place(NamedTuple):
    """Where a broker is, for clients of the listener that was asked."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def leader_of(topic: str, index: int, context: Context) -> Leader | None:
    """As far as this broker knows; None: nobody leads, or it is this broker after all."""
    known = context.cluster.image.topics.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    partition = known.partitions[index]
    if partition.leader in (-1, context.broker_id):
        return None
    return Leader(partition.leader, partition.leader_epoch)


def places_of(brokers: Iterable[int], context: Context) -> Iterator[Place]:
    wanted = set(brokers)
    for broker, endpoint in context.cluster.endpoints(context.listener) if wanted else ():
        if broker.id in wanted:
            yield Place(broker.id, endpoint.host, endpoint.port, broker.rack)
