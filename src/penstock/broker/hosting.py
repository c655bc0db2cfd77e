"""Keeps what this broker hosts in step with what the cluster decided: topics, partitions, settings, epochs."""

import logging

from penstock.broker.cluster import Cluster
from penstock.broker.partition import Partition, Topic
from penstock.broker.replicas import Replicas
from penstock.metadata.image import Delta, TopicImage

_log = logging.getLogger(__name__)


class Hosting:
    def __init__(self, replicas: Replicas, cluster: Cluster) -> None:
        self._replicas = replicas
        self._cluster = cluster

    def begin(self) -> None:
        """Host everything that the cluster knows of, and from now on what it decides."""
        self._forget_deleted()
        for topic in self._cluster.image.topics.values():
            self._add(topic)
        self._cluster.on_change(self._apply)

    def _forget_deleted(self) -> None:
        """Topics that went while this broker was away, or before it could finish with them."""
        directory, image = self._replicas.directory, self._cluster.image
        for topic_id, name in image.tombstones.items():
            if name not in image.topics:
                directory.delete_topic(name, topic_id)
        known = {name: topic.id for name, topic in image.topics.items()}
        for stray in directory.set_aside_unknown(known):
            _log.warning("topic-unknown topic=%s files=%s", stray, "set-aside")

    async def confirm_deleted(self) -> None:
        """Tell the cluster of deleted topics whose files are out of use here."""
        gone = [i for i in self._cluster.image.tombstones if i not in self._replicas.topics_by_id]
        if gone:
            await self._cluster.confirm_deleted(gone)

    def _apply(self, delta: Delta) -> None:
        for gone in delta.deleted:
            if gone.name in self._replicas.topics:
                self._replicas.remove_topic(gone.name)
                _log.info("topic-deleted topic=%s", gone.name)
        for new in delta.created:
            self._add(new)
            _log.info(
                "topic-created topic=%s partitions=%d settings=%s",
                new.name,
                len(new.partitions),
                _settings(new),
            )
        for change in delta.changed:
            topic = self._replicas.topics[change.new.name]
            if change.is_reconfigured or change.is_grown:
                _log.info(
                    "topic-altered topic=%s partitions=%d settings=%s",
                    topic.name,
                    len(change.new.partitions),
                    _settings(change.new),
                )
            if change.is_reconfigured:
                self._replicas.configure(topic.name, self._cluster.topic_config(change.new))
            self._take_partitions(topic, change.new)
        if delta.broker_configs:
            for current in self._cluster.image.topics.values():
                self._replicas.configure(current.name, self._cluster.topic_config(current))

    def _add(self, image: TopicImage) -> None:
        topic = self._replicas.add_topic(image.name, image.id, self._cluster.topic_config(image))
        self._take_partitions(topic, image)

    def _take_partitions(self, topic: Topic, image: TopicImage) -> None:
        for index, state in enumerate(image.partitions):
            if index == len(topic.partitions):
                hosted = self._cluster.broker_id in state.replicas
                self._replicas.add_partition(topic, state.leader_epoch, hosted=hosted)
            elif (partition := topic.partitions[index]) is not None:
                self._take_epoch(partition, state.leader_epoch)

    def _take_epoch(self, partition: Partition, leader_epoch: int) -> None:
        if leader_epoch > partition.leader_epoch:
            partition.leader_epoch = leader_epoch
            partition.wake()  # who waits must see the new epoch


def _settings(topic: TopicImage) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(topic.config.items())) or "-"
