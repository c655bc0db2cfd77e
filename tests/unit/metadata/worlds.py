"""A cluster on paper: an image, and a store that is a dictionary. Decisions are put into effect without waiting."""

from collections.abc import Mapping, Sequence

from penstock.metadata.image import ClusterImage, Delta, TopicImage
from penstock.metadata.rules.config_changes import BrokerLayers, broker_layers
from penstock.metadata.rules.controller import TopicSpec, create_topics
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.registration import broker_lost, register_broker, unfence_broker
from penstock.metadata.store import (
    NO_REVISION,
    Change,
    Changes,
    Compare,
    Delete,
    DeletePrefix,
    Entry,
    Put,
    Revision,
    Snapshot,
    Write,
)
from penstock.metadata.values import (
    Endpoint,
    LiveBroker,
    PartitionImage,
    Registration,
    chunk_key,
    encode_chunk,
    encode_live,
    encode_registration,
    live_key,
    registration_key,
)
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import BrokerError
from penstock.model.ids import TopicId

Static = Mapping[str, str]


class World:
    """Racks by broker id; a broker that is `down` is registered but does not run."""

    def __init__(
        self,
        racks: Mapping[int, str | None] | None = None,
        down: Sequence[int] = (),
        static: Static | None = None,
    ) -> None:
        self.image = ClusterImage()
        self.entries: dict[str, Entry] = {}
        self.revision = Revision(0)
        self.static = static or {}
        self._ids = 0
        for broker_id, rack in (racks if racks is not None else {1: None}).items():
            self.add_broker(broker_id, rack, running=broker_id not in down)

    def add_broker(self, broker_id: int, rack: str | None = None, *, running: bool = True) -> None:
        directory = f"dir-{broker_id}"
        if running:
            live = LiveBroker("i", {"PLAINTEXT": Endpoint("host", 9092)}, rack, directory, 1)
            self.write([Put(live_key(broker_id), encode_live(live))])
        registration = Registration(self.revision, rack, False, directory)
        self.write([Put(registration_key(broker_id), encode_registration(registration))])

    def start(
        self,
        broker_id: int,
        ending: str = "clean",
        *,
        directory: str | None = None,
        previous_epoch: int | None = None,
    ) -> None:
        """A session of a broker that remembers its last one, and how that ended."""
        known = self.image.registrations.get(broker_id)
        epoch = known.epoch if known and previous_epoch is None else previous_epoch or 0
        live = LiveBroker(
            incarnation="i",
            listeners={"PLAINTEXT": Endpoint("host", 9092)},
            rack=known.rack if known else None,
            directory_id=directory or f"dir-{broker_id}",
            lease=1,
            last_shutdown=ending,
            previous_epoch=epoch,
        )
        if live_key(broker_id) in self.entries:
            self.stop(broker_id)
        self.write([Put(live_key(broker_id), encode_live(live))])

    def stop(self, broker_id: int) -> None:
        """The session ends; nobody has taken notice yet."""
        self.write([Delete(live_key(broker_id))])

    @property
    def rules(self) -> Rules:
        in_force = self.layers.in_force
        return Rules(resolve_broker_config(in_force), in_force)

    @property
    def layers(self) -> BrokerLayers:
        return broker_layers(self.image, 1, self.static)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, dict(self.entries))

    def new_id(self) -> TopicId:
        self._ids += 1
        return TopicId(self._ids.to_bytes(16, "big"))

    def create(self, *specs: TopicSpec) -> list[TopicImage]:
        for outcome in create_topics(self.image, specs, self.rules, self.new_id):
            if isinstance(outcome, BrokerError):
                raise outcome
            self.carry_out(outcome)
        return [self.image.topics[spec.name] for spec in specs]

    def carry_out(self, decision: Decision[object]) -> Delta:
        assert all(map(self._holds, decision.compares)), "nothing else writes in this world"
        return self.write(decision.writes)

    def carry_out_all(self, decisions: Sequence[Decision[object]]) -> None:
        for decision in decisions:
            self.carry_out(decision)

    def write(self, writes: Sequence[Write]) -> Delta:
        self.revision = Revision(self.revision + 1)
        changes = [
            Change(key, self.revision, self._put(key, write))
            for write in writes
            for key in self._keys(write)
        ]
        changes.sort()
        return self.image.apply(Changes(self.revision, changes))

    def _keys(self, write: Write) -> list[str]:
        match write:
            case Put(key):
                return [key]
            case Delete(key):
                return [key] if key in self.entries else []
            case DeletePrefix(prefix):
                return [key for key in self.entries if key.startswith(prefix)]

    def _put(self, key: str, write: Write) -> Entry | None:
        old = self.entries.pop(key, None)
        if not isinstance(write, Put):
            return None
        created = old.create_revision if old else self.revision
        self.entries[key] = Entry(write.value, created, self.revision, write.lease)
        return self.entries[key]

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        modified = entry.mod_revision if entry else NO_REVISION
        created = entry.create_revision if entry else NO_REVISION
        return compare.mod_revision in (None, modified) and compare.create_revision in (
            None,
            created,
        )


THREE: dict[int, str | None] = {1: None, 2: None, 3: None}


def world_with(*rows: PartitionImage, config: dict[str, str | None] | None = None) -> World:
    """Three brokers and a topic with these partitions."""
    world = World(THREE)
    replicas = dict.fromkeys(range(len(rows)), rows[0].replicas)
    (topic,) = world.create(TopicSpec("t", assignments=replicas, config=config or {}))
    world.write([Put(chunk_key(topic.id, 0), encode_chunk(rows))])
    return world


def partition(world: World, number: int = 0) -> PartitionImage:
    return world.image.topics["t"].partitions[number]


def lose(world: World, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        world.stop(broker_id)
    for broker_id in broker_ids:
        world.carry_out_all(broker_lost(world.image, broker_id, world.rules))


def come_back(world: World, broker_id: int, ending: str = "clean") -> None:
    world.start(broker_id, ending)
    register(world, broker_id)
    unfence(world, broker_id)


def register(world: World, broker_id: int) -> None:
    world.carry_out_all(register_broker(world.image, broker_id, world.rules))


def unfence(world: World, broker_id: int) -> None:
    world.carry_out_all(unfence_broker(world.image, broker_id, world.rules))


def state(image: ClusterImage) -> dict[str, object]:
    """All that an image holds, for comparison; counts of nothing are no counts."""
    held = {name: value for name, value in vars(image).items() if name != "_shared"}
    for name in ("replica_counts", "leader_counts"):
        held[name] = {broker: count for broker, count in held[name].items() if count}
    held["_hosted"] = {broker: set(chunks) for broker, chunks in held["_hosted"].items() if chunks}
    return held
