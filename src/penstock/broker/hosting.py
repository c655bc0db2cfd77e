"""Keeps what this broker hosts in step with what the cluster decided: topics, partitions, settings, epochs."""

from collections.abc import Callable, Mapping

from penstock.broker.partition import Partition, Topic
from penstock.broker.replicas import Replicas
from penstock.metadata.image import ClusterImage, Delta, TopicImage
from penstock.model.configs import TopicConfig, resolve_topic_config


class Hosting:
    def __init__(
        self, replicas: Replicas, broker_id: int, broker_defaults: Callable[[], Mapping[str, str]]
    ) -> None:
        self._replicas = replicas
        self._broker_id = broker_id
        self._broker_defaults = broker_defaults  # what was set on the broker, by the broker's names

    def load(self, image: ClusterImage) -> None:
        """Host everything that the cluster knows of at start."""
        for topic in image.topics.values():
            self._add(topic)

    def apply(self, delta: Delta, image: ClusterImage) -> None:
        for gone in delta.deleted:
            if gone.name in self._replicas.topics:
                self._replicas.remove_topic(gone.name)
        for new in delta.created:
            self._add(new)
        for change in delta.changed:
            topic = self._replicas.topics[change.new.name]
            if change.is_reconfigured:
                self._replicas.configure(topic.name, self._config(change.new))
            self._take_partitions(topic, change.new)
        if delta.broker_configs:
            for current in image.topics.values():
                self._replicas.configure(current.name, self._config(current))

    def _add(self, image: TopicImage) -> None:
        topic = self._replicas.add_topic(image.name, image.id, self._config(image))
        self._take_partitions(topic, image)

    def _take_partitions(self, topic: Topic, image: TopicImage) -> None:
        for index, state in enumerate(image.partitions):
            if index == len(topic.partitions):
                hosted = self._broker_id in state.replicas
                self._replicas.add_partition(topic, state.leader_epoch, hosted=hosted)
            elif (partition := topic.partitions[index]) is not None:
                self._take_epoch(partition, state.leader_epoch)

    def _take_epoch(self, partition: Partition, leader_epoch: int) -> None:
        if leader_epoch > partition.leader_epoch:
            partition.leader_epoch = leader_epoch
            partition.wake()  # who waits must see the new epoch

    def _config(self, topic: TopicImage) -> TopicConfig:
        return resolve_topic_config(
            topic.config, self._broker_defaults(), replication_factor=topic.replication_factor
        )
