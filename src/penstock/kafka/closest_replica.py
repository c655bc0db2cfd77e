"""KIP-392: a consumer that says in which rack it is reads from an in-sync replica there, if there is one."""

from typing import NamedTuple

from penstock.broker.partitions.partition import Partition
from penstock.metadata.image import ClusterImage


class Redirect(NamedTuple):
    """Read on there."""

    broker_id: int


def closest_replica(
    partition: Partition, rack: str, offset: int, image: ClusterImage
) -> Redirect | None:
    """A follower in that rack which has what lies at `offset`; None: this leader is as good as any."""
    leadership = partition.leadership
    if leadership is None or not rack:
        return None
    own = image.brokers.get(leadership.broker_id)
    if own is not None and own.rack == rack:
        return None
    for member in leadership.isr.members:
        broker, follower = image.brokers.get(member), leadership.follower(member)
        if broker is None or broker.fenced or broker.rack != rack or follower is None:
            continue
        if partition.log.start_offset <= offset <= follower.next_offset:
            return Redirect(member)
    return None
