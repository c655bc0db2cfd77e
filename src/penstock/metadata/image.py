"""The picture of the cluster that a store's keys give: brokers, topics, settings. Applying a change costs what it changed.

Topics and partitions are immutable values: whoever holds one may keep it across an await.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from penstock.metadata.image_parts import (
    INTERNAL_TOPICS,
    BrokerInfo,
    Delta,
    TopicChange,
    TopicImage,
)
from penstock.metadata.store import NO_REVISION, Change, Changes, Entry, Revision, Snapshot
from penstock.metadata.values import (
    CHUNK_PARTITIONS,
    Endpoint,
    LiveBroker,
    PartitionImage,
    Registration,
    Vote,
    decode,
    decode_chunk,
    decode_live,
    decode_registration,
    feature_key,
)
from penstock.model.ids import TopicId, TopicName, TopicPartition, parse_topic_id

__all__ = [
    "INTERNAL_TOPICS",
    "BrokerInfo",
    "ChunkId",
    "ClusterImage",
    "Delta",
    "Endpoint",
    "PartitionImage",
    "TopicChange",
    "TopicImage",
]

_KINDS: Final = frozenset(
    {"p", "t", "cfg", "live", "reg", "controller", "pid", "dead", "feat", "meta", "vote"}
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


ChunkId = tuple[TopicId, int]


class ClusterImage:
    """Everything that was committed up to `revision`. Only the Cluster that owns it applies changes."""

    def __init__(self) -> None:
        self.revision = NO_REVISION
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.controller_epoch = NO_REVISION
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.tombstones: dict[TopicId, TopicName] = {}
        self.broker_configs: dict[str, Mapping[str, str]] = {}  # by broker id; "" is all brokers
        self.group_configs: dict[str, Mapping[str, str]] = {}  # by group id
        self.features: dict[str, int] = {}  # the levels in force, as they are stored
        self.next_producer_id = 0
        self.key_revisions: dict[str, Revision] = {}  # of the last write of each key
        self.replica_counts: dict[int, int] = {}  # by broker
        self.leader_counts: dict[int, int] = {}
        self.live: dict[int, LiveBroker] = {}
        self.registrations: dict[int, Registration] = {}
        self.votes: dict[tuple[int, int], Vote] = {}  # by suspect and voter
        self._epochs: dict[int, Revision] = {}  # of live brokers
        self._rows: dict[TopicName, tuple[TopicId, int]] = {}
        self._names: dict[TopicId, TopicName] = {}
        self._topic_configs: dict[TopicName, Mapping[str, str]] = {}
        self._promotions: dict[TopicName, int] = {}
        self._chunks: dict[TopicId, dict[int, tuple[PartitionImage, ...]]] = {}
        self._hosted: dict[int, dict[ChunkId, None]] = {}  # chunks by broker, in order
        self._moving: dict[ChunkId, None] = {}  # with a partition that is being reassigned
        self._colliding: dict[str, dict[TopicName, None]] = {}  # names alike in metrics
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> "ClusterImage":
        image = cls()
        image.apply(Changes(snapshot.revision, _as_changes(snapshot.entries)))
        return image

    def apply(self, changes: Changes) -> Delta:
        """Takes in what is newer than this image; the rest is known already."""
        delta = Delta(changes.revision)
        touched: dict[TopicName, None] = {}
        for change in changes.changes:
            if change.revision > self.revision:
                self._note(change)
                self._apply_one(change, delta, touched)
        for name in touched:
            self._assemble(name, delta)
        self.revision = max(self.revision, changes.revision)
        return delta

    def since(self, old: "ClusterImage") -> Delta:
        """What is different from an older image, for when the changes between them are lost."""
        delta = Delta(self.revision)
        for name, topic in old.topics.items():
            new = self.topics.get(name)
            if new is None or new.id != topic.id:
                delta.deleted.append(topic)
            elif new != topic:
                delta.changed.append(TopicChange(topic, new))
        delta.created = [
            topic for topic in self.topics.values() if topic.id not in old.topics_by_id
        ]
        brokers = {**old.brokers, **self.brokers}
        delta.brokers = [it for it in brokers if old.brokers.get(it) != self.brokers.get(it)]
        delta.controller = old.controller_epoch != self.controller_epoch
        delta.broker_configs = old.broker_configs != self.broker_configs
        groups = old.group_configs.keys() | self.group_configs.keys()
        delta.group_configs = sorted(
            it for it in groups if old.group_configs.get(it) != self.group_configs.get(it)
        )
        delta.features = old.features != self.features
        delta.votes = old.votes != self.votes
        return delta

    # what others ask

    def chunk(self, topic_id: TopicId, chunk: int) -> tuple[PartitionImage, ...]:
        return self._chunks.get(topic_id, {}).get(chunk, ())

    def chunks_on(self, broker_id: int) -> list[ChunkId]:
        """The chunks with a replica on that broker."""
        return list(self._hosted.get(broker_id, ()))

    def moving_partitions(self) -> dict[TopicPartition, PartitionImage]:
        """The partitions that are being reassigned."""
        found: dict[TopicPartition, PartitionImage] = {}
        for topic_id, chunk in self._moving:
            topic = self.topics_by_id.get(topic_id)
            first = chunk * CHUNK_PARTITIONS
            rows = topic.partitions[first : first + CHUNK_PARTITIONS] if topic else ()
            for number, row in enumerate(rows, first):
                if topic and (row.adding or row.removing):
                    found[TopicPartition(topic.name, number)] = row
        return found

    def colliding_topic(self, name: str) -> str | None:
        """A topic of another name that would have the same name in metrics, where `.` and `_` are one."""
        alike = self._colliding.get(name.replace(".", "_"), {})
        return next((other for other in alike if other != name), None)

    def orphans(self) -> list[TopicId]:
        """Topics whose creation was broken off: partitions that nothing points to."""
        return [topic_id for topic_id in self._chunks if topic_id not in self._names]

    @property
    def partition_count(self) -> int:
        return sum(self.leader_counts.values())

    @property
    def leaderless_count(self) -> int:
        return self.leader_counts.get(-1, 0)

    @property
    def features_epoch(self) -> Revision:
        """Grows whenever the level of a feature changes."""
        keys = map(feature_key, self.features)
        return max((self.key_revisions[key] for key in keys), default=NO_REVISION)

    def usable_brokers(self) -> list[BrokerInfo]:
        return [broker for broker in self.brokers.values() if not broker.fenced]

    # taking changes in

    def _note(self, change: Change) -> None:
        if change.entry is None:
            self.key_revisions.pop(change.key, None)
        else:
            self.key_revisions[change.key] = change.revision

    def _apply_one(self, change: Change, delta: Delta, touched: dict[TopicName, None]) -> None:
        kind, _, rest = change.key.partition("/")
        if kind not in _KINDS:  # a newer broker's own: what we must understand has a version
            return
        entry = change.entry
        fields = decode(change.key, entry.value) if entry is not None else None
        match kind:
            case "p":
                self._take_chunk(rest, fields, touched)
            case "t":
                self._take_topic(TopicName(rest), fields, touched)
            case "cfg":
                self._take_config(rest, fields, delta, touched)
            case "live" | "reg":
                self._take_broker(kind, int(rest), entry, fields)
                delta.brokers.append(int(rest))
            case "controller":
                delta.controller = True
                self.controller_id = fields["broker"] if fields else None
                self.controller_epoch = entry.create_revision if entry else NO_REVISION
            case "pid":
                self.next_producer_id = fields["next"] if fields else 0
            case "dead":
                self._take_tombstone(parse_topic_id(rest), fields)
            case "vote":
                delta.votes = True
                suspect, _, voter = rest.partition("/")
                vote = Vote(fields["epoch"], fields["cut_off"]) if fields else None
                _put(self.votes, (int(suspect), int(voter)), vote)
            case "feat":
                delta.features = True
                _put(self.features, rest, fields and fields["level"])
            case _:
                assert kind == "meta"
                self.cluster_id = fields["cluster_id"] if fields else None

    def _take_topic(
        self, name: TopicName, fields: Mapping[str, Any] | None, touched: dict[TopicName, None]
    ) -> None:
        old = self._rows.pop(name, None)
        if old is not None:
            self._names.pop(old[0], None)
        alike = name.replace(".", "_")
        if fields is None:
            names = self._colliding.get(alike, {})
            names.pop(name, None)
            if not names:
                self._colliding.pop(alike, None)
        else:
            topic_id = parse_topic_id(fields["id"])
            self._rows[name] = topic_id, fields["partitions"]
            self._names[topic_id] = name
            self._colliding.setdefault(alike, {})[name] = None
        touched[name] = None

    def _take_chunk(
        self, rest: str, fields: Mapping[str, Any] | None, touched: dict[TopicName, None]
    ) -> None:
        text, _, number = rest.partition("/")
        topic_id, chunk = parse_topic_id(text), int(number)
        chunks = self._chunks.setdefault(topic_id, {})
        old = chunks.pop(chunk, ())
        new = decode_chunk(fields, self._shared) if fields is not None else ()
        if new:
            chunks[chunk] = new
        elif not chunks:
            del self._chunks[topic_id]
        self._count((topic_id, chunk), old, new)
        name = self._names.get(topic_id)
        if name is not None:
            touched[name] = None

    def _count(
        self, chunk: ChunkId, old: Sequence[PartitionImage], new: Sequence[PartitionImage]
    ) -> None:
        if [partition.replicas for partition in old] != [partition.replicas for partition in new]:
            self._count_replicas(chunk, old, -1)
            self._count_replicas(chunk, new, 1)
        counts = self.leader_counts
        for partition in old:
            counts[partition.leader] -= 1
        for partition in new:
            counts[partition.leader] = counts.get(partition.leader, 0) + 1
        if [partition for partition in new if partition.adding or partition.removing]:
            self._moving[chunk] = None
        else:
            self._moving.pop(chunk, None)

    def _count_replicas(
        self, chunk: ChunkId, partitions: Sequence[PartitionImage], step: int
    ) -> None:
        hosts = Counter(chain.from_iterable([partition.replicas for partition in partitions]))
        for broker_id, count in hosts.items():
            self.replica_counts[broker_id] = self.replica_counts.get(broker_id, 0) + count * step
            hosted = self._hosted.setdefault(broker_id, {})
            if step > 0:
                hosted[chunk] = None
            else:
                hosted.pop(chunk, None)

    def _take_config(
        self,
        rest: str,
        fields: Mapping[str, Any] | None,
        delta: Delta,
        touched: dict[TopicName, None],
    ) -> None:
        owner, _, name = rest.partition("/")
        config = MappingProxyType(fields["set"]) if fields else None
        if owner == "topic":
            _put(self._topic_configs, TopicName(name), config)
            _put(self._promotions, TopicName(name), fields.get("promotion") if fields else None)
            touched[TopicName(name)] = None
        elif owner == "broker":
            _put(self.broker_configs, name, config)
            delta.broker_configs = True
        elif owner == "group":
            _put(self.group_configs, name, config)
            delta.group_configs.append(name)

    def _take_broker(
        self, kind: str, broker_id: int, entry: Entry | None, fields: Mapping[str, Any] | None
    ) -> None:
        if kind == "reg":
            _put(self.registrations, broker_id, decode_registration(fields) if fields else None)
        else:
            _put(self.live, broker_id, decode_live(fields) if fields else None)
            _put(self._epochs, broker_id, entry.create_revision if entry else None)
        _put(self.brokers, broker_id, self._broker(broker_id))

    def _broker(self, broker_id: int) -> BrokerInfo | None:
        live, registered = self.live.get(broker_id), self.registrations.get(broker_id)
        if live is not None:
            epoch = self._epochs[broker_id]
            admitted = registered is not None and registered.epoch == epoch
            fenced = not admitted or (registered is not None and registered.fenced)
            leaving = admitted and registered is not None and registered.in_controlled_shutdown
            return BrokerInfo(
                broker_id, epoch, live.listeners, live.rack, fenced, live.directory_id, leaving
            )
        if registered is not None:
            return BrokerInfo(broker_id, 0, {}, registered.rack, True, registered.directory_id)
        return None

    def _take_tombstone(self, topic_id: TopicId, fields: Mapping[str, Any] | None) -> None:
        _put(self.tombstones, topic_id, TopicName(fields["name"]) if fields else None)

    def _assemble(self, name: TopicName, delta: Delta) -> None:
        """The topic anew from its row, chunks and settings; what the row does not count is not visible."""
        old, new = self.topics.get(name), self._topic(name)
        if old is not None and (new is None or new.id != old.id):
            delta.deleted.append(old)
            del self.topics[name], self.topics_by_id[old.id]
            old = None
        if new is None:
            return
        if old is None:
            delta.created.append(new)
        elif old != new:
            delta.changed.append(TopicChange(old, new))
        self.topics[name] = self.topics_by_id[new.id] = new

    def _topic(self, name: TopicName) -> TopicImage | None:
        row = self._rows.get(name)
        if row is None:
            return None
        topic_id, count = row
        chunks = self._chunks.get(topic_id, {})
        if len(chunks) == 1:
            partitions = chunks.get(0, ())[:count]
        else:
            rows = (chunks[number] for number in sorted(chunks))
            partitions = tuple(partition for chunk in rows for partition in chunk)[:count]
        config = self._topic_configs.get(name, _NOTHING)
        return TopicImage(name, topic_id, partitions, config, self._promotions.get(name, 0))


def _as_changes(entries: Mapping[str, Entry]) -> list[Change]:
    return [Change(key, entry.mod_revision, entry) for key, entry in entries.items()]


def _put(table: dict[Any, Any], key: object, value: object | None) -> None:
    """None takes the key out."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
