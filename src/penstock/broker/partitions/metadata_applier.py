"""Apply changes of the cluster image to this broker: topics, partitions, settings, roles.

It leads only while its session holds. When that is lost it follows at once, whatever the picture of the
cluster still says; the controller gives what it led to others, or back, in a new epoch.
"""

import logging

from penstock.broker.controller.cluster import Cluster
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.partition import Partition, Topic
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.metadata.image import Delta, PartitionImage, TopicChange, TopicImage

_log = logging.getLogger(__name__)


class MetadataApplier:
    def __init__(self, replicas: ReplicaManager, cluster: Cluster, followers: Followers) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._followers = followers
        self._sessions: dict[int, int] = {}  # of each broker: the last that was seen
        self._may_lead = False

    def begin(self) -> None:
        """Host everything that the cluster knows of, and from now on what it decides."""
        self._forget_deleted()
        for topic in self._cluster.image.topics.values():
            self._add(topic)
        self._cluster.on_change(self._apply)
        self._cluster.on_session_lost(self._take_roles)

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

    # What changes ------------------------------------------------------------------------------

    def _apply(self, delta: Delta) -> None:
        for broker_id in delta.brokers:  # before what the change of others makes committed
            self._note_session(broker_id)
        for gone in delta.deleted:
            if gone.name in self._replicas.topics:
                self._remove(gone.name)
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
            self._change(change)
        if delta.broker_configs:
            for current in self._cluster.image.topics.values():
                self._configure(current)
        if self._cluster.broker_id in delta.brokers:
            self._take_roles()

    def _note_session(self, broker_id: int) -> None:
        broker = self._cluster.image.brokers.get(broker_id)
        if broker is None or self._sessions.get(broker_id) == broker.epoch:
            return
        self._sessions[broker_id] = broker.epoch
        for partition in self._replicas.partitions():
            if partition.leadership is not None:
                partition.leadership.began_session(broker_id, broker.epoch)

    def _change(self, change: TopicChange) -> None:
        topic = self._replicas.topics[change.new.name]
        if change.is_reconfigured or change.is_grown:
            _log.info(
                "topic-altered topic=%s partitions=%d settings=%s",
                topic.name,
                len(change.new.partitions),
                _settings(change.new),
            )
        if change.is_reconfigured:
            self._configure(change.new)
        self._take_partitions(topic, change.new.partitions, change.old.partitions)

    def _configure(self, image: TopicImage) -> None:
        config = self._cluster.topic_config(image)
        self._replicas.configure(image.name, config, image.promotion)

    def _remove(self, name: str) -> None:
        for partition in self._replicas.topics[name].partitions:
            if partition is not None:
                self._followers.unfollow(partition)
        self._replicas.remove_topic(name)

    def _add(self, image: TopicImage) -> None:
        config = self._cluster.topic_config(image)
        topic = self._replicas.add_topic(image.name, image.id, config, image.promotion)
        self._take_partitions(topic, image.partitions, ())

    def _take_partitions(
        self, topic: Topic, states: tuple[PartitionImage, ...], before: tuple[PartitionImage, ...]
    ) -> None:
        for index, state in enumerate(states):
            if index == len(topic.partitions):
                hosted = self._cluster.broker_id in state.replicas
                self._replicas.add_partition(topic, state.leader_epoch, hosted=hosted)
            elif index < len(before) and state == before[index]:
                continue
            if index < len(before) and state.leader != before[index].leader:
                self._count_election()
            self._take_partition(topic, index, state)

    def _take_partition(self, topic: Topic, index: int, state: PartitionImage) -> None:
        partition = topic.partitions[index]
        if self._cluster.broker_id in state.replicas:
            if partition is None:
                partition = self._replicas.host_partition(topic, index, state.leader_epoch)
            self._take_role(partition, state)
        elif partition is not None:
            _log.info("partition-moved-away partition=%s", partition)
            self._followers.unfollow(partition)
            self._replicas.drop_partition(topic, index)

    def _count_election(self) -> None:
        if self._cluster.is_controller:
            self._replicas.metrics.replication.elections.value += 1

    # Roles -------------------------------------------------------------------------------------

    def _take_roles(self) -> None:
        """This broker may lead from now on, or no longer: every partition's role anew."""
        cluster = self._cluster
        own = cluster.image.brokers.get(cluster.broker_id)
        may_lead = own is not None and not own.fenced and own.epoch == cluster.epoch
        if may_lead == self._may_lead:
            return
        self._may_lead = may_lead
        _log.info("role broker=%d may-lead=%s", cluster.broker_id, "yes" if may_lead else "no")
        for image in cluster.image.topics.values():
            topic = self._replicas.topics.get(image.name)
            for partition, state in zip(
                topic.partitions if topic else (), image.partitions, strict=False
            ):
                if partition is not None and topic is not None and topic.id == image.id:
                    self._take_role(partition, state)

    def _take_role(self, partition: Partition, state: PartitionImage) -> None:
        me = self._cluster.broker_id
        if state.leader != me:
            partition.follow(state)
            self._followers.follow(partition)
        elif self._may_lead:
            self._followers.unfollow(partition)
            partition.lead(me, state)
        else:
            self._followers.unfollow(partition)
            partition.follow(None)


def _settings(topic: TopicImage) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(topic.config.items())) or "-"
