"""A mirror that becomes a topic of its own: it is in promotion until every partition's leader has ended the mirror.

The number of a promotion is told to the logs, so that each is promoted once, whoever leads and after any crash.
"""

from collections.abc import Mapping
from typing import Final

from penstock.metadata.image import INTERNAL_TOPICS, ClusterImage, TopicImage
from penstock.metadata.rules.decisions import Decision, unchanged
from penstock.metadata.rules.feature_levels import in_force
from penstock.metadata.store import Delete, Put, Write
from penstock.metadata.values import encode, topic_config_key
from penstock.model.errors import InvalidConfig
from penstock.model.features import MIRROR_VERSION, MIRRORED_TOPICS

MIRROR_SOURCE: Final = "penstock.mirror.source"
NO_PROMOTION: Final = 0


def check_may_mirror(image: ClusterImage, name: str, overrides: Mapping[str, str]) -> None:
    """Raise if a topic that cannot be a mirror would become one."""
    if not overrides.get(MIRROR_SOURCE):
        return
    if name in INTERNAL_TOPICS:
        raise InvalidConfig(f"'{name}' is written by brokers only: it cannot be a mirror")
    level = in_force(image).get(MIRROR_VERSION, 0)
    if level < MIRRORED_TOPICS:
        raise InvalidConfig(
            f"{MIRROR_SOURCE}: this cluster has {MIRROR_VERSION} at level {level}, and that needs"
            f" {MIRRORED_TOPICS}: penstock cluster features upgrade --to {MIRROR_VERSION}={MIRRORED_TOPICS}"
        )


def promotion_after(image: ClusterImage, topic: TopicImage, overrides: Mapping[str, str]) -> int:
    """What the topic is in, once it has these settings. Revisions grow, so no number comes twice."""
    if overrides.get(MIRROR_SOURCE):
        return NO_PROMOTION
    if topic.config.get(MIRROR_SOURCE):
        return image.revision + 1
    return topic.promotion


def topic_write(name: str, overrides: Mapping[str, str], promotion: int) -> Write:
    key = topic_config_key(name)
    if promotion:
        return Put(key, encode(set=overrides, promotion=promotion))
    return Put(key, encode(set=overrides)) if overrides else Delete(key)


def in_promotion(image: ClusterImage) -> list[TopicImage]:
    return [topic for topic in image.topics.values() if topic.promotion]


def end_promotion(image: ClusterImage, name: str, number: int) -> list[Decision[None]]:
    """Every leader has done its part; nothing if that is no longer what the topic is in."""
    topic = image.topics.get(name)
    if topic is None or topic.promotion != number:
        return []
    write = topic_write(name, topic.config, NO_PROMOTION)
    return [Decision(None, [write], [unchanged(image, topic_config_key(name))])]
