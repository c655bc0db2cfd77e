"""Deleted topics are remembered until no registered broker, running or not, holds data of them (O4, O5)."""

from collections.abc import Collection, Mapping

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision, unchanged
from penstock.metadata.store import Delete
from penstock.metadata.values import registration_key, tombstone_key
from penstock.model.ids import TopicId


def forget_tombstones(
    image: ClusterImage, confirmed: Mapping[int, Collection[TopicId]]
) -> list[Decision[None]]:
    """`confirmed` are the deleted topics of which each broker, by its id, has said that it holds nothing more.

    Holds only while none of them has registered anew: one that comes back may hold data.
    """
    members = list(image.registrations)
    if not members or not all(broker_id in confirmed for broker_id in members):
        return []
    grounds = [unchanged(image, registration_key(broker_id)) for broker_id in members]
    decisions = []
    for topic_id in image.tombstones:
        if all(topic_id in confirmed[broker_id] for broker_id in members):
            key = tombstone_key(topic_id)
            decisions.append(Decision(None, [Delete(key)], [unchanged(image, key), *grounds]))
    return decisions
