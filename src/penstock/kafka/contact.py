"""Whether a leader that does not reach the metadata store may go on alone (B5): others may lead in its place by now.

Not while all who are in sync fetch from it as of its own epoch: without one of them nobody else can be elected.
What every in-sync replica must have (acks=all) needs no such rule.
"""

from typing import Final

from penstock.broker.partitions.partition import Partition
from penstock.kafka.context import Services
from penstock.kafka.leader_confirmation import last_fetch_ms
from penstock.model.errors import NotLeader

_SESSIONS: Final = 2  # of brokers: in which all must have fetched


def check_contact(partition: Partition, services: Services) -> None:
    """Raises NotLeader for what would be acknowledged by this leader alone."""
    leadership = partition.leadership
    if leadership is None:
        return
    ttl_ms = services.cluster.config.broker_session_timeout_ms
    since_ms = services.clock.monotonic_ms() - _SESSIONS * ttl_ms
    others = [member for member in leadership.isr.members if member != leadership.broker_id]
    if leadership.is_doubted and others:
        raise NotLeader(f"{partition} has a later leader epoch, and its state cannot be read now")
    for broker_id in others:
        if last_fetch_ms(partition, broker_id) < since_ms:
            raise NotLeader(
                f"{partition}: neither the metadata store nor broker {broker_id} is in reach;"
                " another broker may lead"
            )
