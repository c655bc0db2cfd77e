"""A coordinator's shard, partitions and producers around it, and nothing real: what histories are played on.

The world may end at any moment: what was not written is then forgotten, and so is whoever waited for it.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions import machine
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Event,
    Initialize,
    Markers,
    MarkersWritten,
    NeedProducerId,
    Outcome,
    Overdue,
    Reply,
    SendMarkers,
    Write,
)
from penstock.transactions.shard import Shard
from penstock.transactions.state import Now, Producer, Status, entry

ID: Final = "tx"
TIMEOUT_MS: Final = 1000
PARTITIONS: Final = tuple(TopicPartition("t", number) for number in range(3))
Tag = tuple[int, int]  # an incarnation of the producer, and which transaction of its own


@dataclass
class Log:
    """A partition as KIP-890 has it: a marker ends what is open; what is older than the epoch is refused."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[Tag, int]]] = field(default_factory=dict)
    committed: list[tuple[Tag, int]] = field(default_factory=list)
    aborted: list[tuple[Tag, int]] = field(default_factory=list)

    def has_open(self, producer: Producer) -> bool:
        return bool(self.open.get(producer.id)) and self.epochs[producer.id] == producer.epoch

    def append(self, producer: Producer, tag: Tag, number: int) -> None:
        assert producer.epoch >= self.epochs.get(producer.id, -1)
        self.epochs[producer.id] = producer.epoch
        self.open.setdefault(producer.id, []).append((tag, number))

    def end(self, markers: Markers) -> None:
        producer = markers.producer
        known = self.epochs.get(producer.id, -1)
        late = markers.ends_epoch and known == producer.epoch
        if known > producer.epoch or late:
            return  # overtaken, or written before
        self.epochs[producer.id] = producer.epoch
        ended = self.open.pop(producer.id, [])
        (self.committed if markers.committed else self.aborted).extend(ended)


@dataclass
class Client:
    """One incarnation of the producer. It does what producers do, as far as it hears of it."""

    number: int
    version: int
    producer: Producer | None = None
    transaction: int = 0
    touched: set[TopicPartition] = field(default_factory=set)
    is_dead: bool = False  # fenced, or so lost that it gives up

    @property
    def tag(self) -> Tag:
        return self.number, self.transaction

    def next_transaction(self, producer: Producer) -> None:
        self.producer = producer
        self.transaction += 1
        self.touched = set()


@dataclass
class Fate:
    """What is known of a transaction."""

    acknowledged: dict[tuple[TopicPartition, int], None] = field(default_factory=dict)
    asked: set[bool] = field(default_factory=set)  # to commit, to abort
    told: bool | None = None  # that it was committed, or aborted


class World:
    def __init__(self) -> None:
        self.now = Now(0, 1_000_000)
        self.shard = Shard()
        self.written: list[tuple[bytes, bytes | None]] = []
        self.waiting: list[Effect] = []  # behind a write that is not committed yet
        self.sending: list[tuple[Markers, list[TopicPartition]]] = []
        self.logs = {name: Log() for name in PARTITIONS}
        self.fates: dict[Tag, Fate] = {}
        self.given: dict[Producer, int] = {}  # to which incarnation
        self.fresh_id = 100
        self.number = 0
        self._told: Outcome | None = None

    def fate(self, tag: Tag) -> Fate:
        return self.fates.setdefault(tag, Fate())

    # The shell ---------------------------------------------------------------------------------

    def deliver(self, event: Event) -> None:
        self._do(self.shard.step(ID, event, self.now))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, NeedProducerId):
                self.fresh_id += 1
                self.deliver(replace(effect.request, fresh_id=self.fresh_id))
            elif isinstance(effect, Write) or self.waiting:
                self.waiting.append(effect)
            else:
                self._act(effect)

    def _act(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            assert self._told is None, "a request is answered once"
            self._told = effect.outcome
        elif isinstance(effect, SendMarkers):
            self.check_is_decided(effect.markers)
            self.sending.append((effect.markers, list(effect.markers.partitions)))
            self._end_sendings()

    def commit(self) -> None:
        """What waits is written, and what waited for that is done."""
        waiting, self.waiting = self.waiting, []
        for effect in waiting:
            if isinstance(effect, Write):
                self.written.append((effect.key, effect.value))
        for effect in waiting:
            if not isinstance(effect, Write):
                self._act(effect)

    def write_marker(self, choice: int) -> None:
        markers, left = self.sending[choice % len(self.sending)]
        self.logs[left.pop()].end(markers)
        self._end_sendings()

    def _end_sendings(self) -> None:
        done = [markers for markers, left in self.sending if not left]
        self.sending = [sending for sending in self.sending if sending[1]]
        for markers in done:
            self.deliver(MarkersWritten(markers.producer))

    def crash(self) -> None:
        self.waiting.clear()
        self.sending.clear()
        self.shard = self.replayed()
        for _, effects in self.shard.load(self.now):
            self._do(effects)

    def replayed(self) -> Shard:
        shard = Shard()
        for key, value in self.written:
            shard.apply(key, value, self.now)
        return shard

    def pass_time(self, ms: int) -> None:
        self.now = Now(self.now.ms + ms, self.now.wall_ms + ms)
        self.deliver(Overdue())

    # Requests ----------------------------------------------------------------------------------

    def ask(self, event: Initialize | Add | End, *, lost: bool) -> Outcome | None:
        """What the client is told. `lost`: the coordinator dies before it is written, but not at once."""
        self._told = None
        self.deliver(event)
        if lost:
            if self.sending:
                self.write_marker(0)
            self.crash()
        else:
            self.commit()
        told, self._told = self._told, None
        assert lost or told is not None, "every request is answered"
        return told

    def produce(self, client: Client, name: TopicPartition, *, lost: bool = False) -> ErrorCode:
        """One record, sent by `client` as it is now."""
        assert client.producer is not None
        self.number += 1
        code = self.send(client.producer, client.version, client.tag, name, self.number, lost=lost)
        if code is ErrorCode.NONE:
            self.fate(client.tag).acknowledged[name, self.number] = None
        return code

    def send(
        self,
        producer: Producer,
        version: int,
        tag: Tag,
        name: TopicPartition,
        number: int,
        *,
        lost: bool = False,
    ) -> ErrorCode:
        """The record on its way into the log, perhaps not for the first time."""
        log = self.logs[name]
        if producer.epoch < log.epochs.get(producer.id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if not log.has_open(producer):
            if version >= 2:
                told = self.ask(Add(0, producer, frozenset({name}), 2), lost=lost)
                if told is None:
                    return ErrorCode.NOT_COORDINATOR
            code = machine.verify(self.shard.transactions.get(ID), producer, name)
            if code:
                return code
        if (tag, number) in log.open.get(producer.id, ()):
            return ErrorCode.NONE  # a duplicate
        log.append(producer, tag, number)
        return ErrorCode.NONE

    # The end -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.commit()
        for _ in range(3):
            while self.sending:
                self.write_marker(0)
            self.commit()
            self.pass_time(TIMEOUT_MS)
            self.commit()

    def check_is_decided(self, markers: Markers) -> None:
        """Partitions are told of an end that the log has, and that no crash can undo."""
        found = self.replayed().transactions.get(ID)
        decided = Status.PREPARE_COMMIT if markers.committed else Status.PREPARE_ABORT
        assert found is not None, "nothing is written of what partitions are told"
        assert (found.producer, found.status) == (markers.producer, decided), "told too early"

    def check_state_is_written(self) -> None:
        if self.waiting:
            return
        replayed = self.replayed().transactions
        assert replayed.keys() == self.shard.transactions.keys()
        for name, transaction in self.shard.transactions.items():
            assert entry(replayed[name]) == entry(transaction)

    def check_all_or_nothing(self) -> None:
        for name, log in self.logs.items():
            assert not any(log.open.values()), f"{name} has a transaction that nobody ends"
        committed = {
            (tag, (name, n)) for name, log in self.logs.items() for tag, n in log.committed
        }
        aborted = {(tag, (name, n)) for name, log in self.logs.items() for tag, n in log.aborted}
        for tag, fate in self.fates.items():
            records = {(tag, record) for record in fate.acknowledged}
            assert records <= committed or records <= aborted, f"{tag} is torn"
            assert not any(tag == other for other, _ in committed - records), (
                f"{tag}: unacknowledged"
            )
            if records & committed:
                assert True in fate.asked, f"{tag} was committed, and nobody asked for it"
                assert fate.told is not False, f"{tag} was told to be aborted"
            if records & aborted:
                assert fate.told is not True, f"{tag} was told to be committed"
