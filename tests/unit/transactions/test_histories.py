"""Any history: a transaction is wholly visible or not at all, whatever dies, is late, or comes twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions import machine, state
from penstock.transactions.events import Add, End, Initialize, Outcome
from penstock.transactions.state import Producer
from tests.unit.transactions.world import ID, PARTITIONS, TIMEOUT_MS, Client, Tag, World

FEW_EPOCHS = 6  # so that they are used up all the time
partitions = st.sampled_from(PARTITIONS)
rarely = st.sampled_from([False, False, False, True])
choices = st.integers(0, 5)
waits = st.sampled_from([1, 300, TIMEOUT_MS])
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


class History(RuleBasedStateMachine):
    """Incarnations of one producer, older ones still alive; requests that are lost, late or doubled."""

    version = 2

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients: list[Client] = []
        self.last_given: Producer | None = None
        self.late_sends: list[tuple[Producer, Tag, TopicPartition, int]] = []
        self.late_ends: list[End] = []

    @property
    def newest(self) -> Client:
        return self.clients[-1]

    def _gave(self, client: Client, told: Outcome) -> None:
        holder = self.world.given.setdefault(told.producer, client.number)
        assert holder == client.number, f"{told.producer} was given to two producers"
        self.last_given = told.producer
        assert told.producer.epoch < state.LAST_EPOCH, "it could not be fenced"

    # Beginning ---------------------------------------------------------------------------------

    @rule(lost=rarely)
    def newcomer(self, lost: bool) -> None:
        """A producer starts, however many there are."""
        if len(self.clients) < 4:
            self.clients.append(Client(len(self.clients), self.version))
            self.initialize(lost)

    @precondition(lambda self: self.clients and self.newest.producer is None)
    @rule(lost=rarely)
    def initialize(self, lost: bool) -> None:
        told = self.world.ask(Initialize(0, TIMEOUT_MS), lost=lost)
        if told is not None and not told.code:
            self._gave(self.newest, told)
            self.newest.next_transaction(told.producer)

    @precondition(lambda self: any(c.producer and not c.is_dead for c in self.clients))
    @rule(choice=choices, lost=rarely)
    def go_on_with_a_new_epoch(self, choice: int, lost: bool) -> None:
        """After an error that is no fault of the transaction (KIP-360). What is open is aborted by it."""
        client = self._someone(choice)
        assert client.producer is not None
        told = self.world.ask(Initialize(0, TIMEOUT_MS, client.producer), lost=lost)
        if told is None:
            return
        if not told.code:
            self._gave(client, told)
            client.next_transaction(told.producer)
        elif told.code in FENCED:
            client.is_dead = True

    def _someone(self, choice: int) -> Client:
        alive = [c for c in self.clients if c.producer and not c.is_dead]
        return alive[choice % len(alive)]

    # In a transaction --------------------------------------------------------------------------

    @precondition(lambda self: any(c.producer and not c.is_dead for c in self.clients))
    @rule(choice=choices, name=partitions, lost=rarely, late=rarely)
    def produce(self, choice: int, name: TopicPartition, lost: bool, late: bool) -> None:
        client, world = self._someone(choice), self.world
        assert client.producer is not None
        if True in world.fate(client.tag).asked or False in world.fate(client.tag).asked:
            return  # it waits for the end
        if client.version < 2 and name not in client.touched:
            told = world.ask(Add(0, client.producer, frozenset({name})), lost=lost)
            if told is None or told.code:
                client.is_dead |= told is not None and told.code in FENCED
                return
            client.touched.add(name)
        if late and self.version >= 2:
            world.number += 1
            self.late_sends.append((client.producer, client.tag, name, world.number))
            return
        code = world.produce(client, name, lost=lost and client.version >= 2)
        client.is_dead |= code in FENCED

    @precondition(lambda self: self.late_sends)
    @rule(choice=choices)
    def a_late_record_arrives(self, choice: int) -> None:
        """Its producer has given it up, or it was sent again since: it must not enter another transaction."""
        producer, tag, name, number = self.late_sends.pop(choice % len(self.late_sends))
        code = self.world.send(producer, self.version, tag, name, number)
        if code is ErrorCode.NONE:
            self.world.fate(tag).acknowledged[name, number] = None

    # Ending ------------------------------------------------------------------------------------

    @precondition(lambda self: any(c.producer and not c.is_dead for c in self.clients))
    @rule(choice=choices, committed=st.booleans(), lost=rarely, unheard=rarely, late=rarely)
    def end(self, choice: int, committed: bool, lost: bool, unheard: bool, late: bool) -> None:
        """Once it has asked for an end, a producer asks for that one until it hears."""
        client, world = self._someone(choice), self.world
        assert client.producer is not None
        fate = world.fate(client.tag)
        if not fate.acknowledged and not fate.asked and self.version < 2:
            return  # it does not ask, and would be refused
        committed = next(iter(fate.asked), committed)
        if committed and not fate.acknowledged:
            return
        fate.asked.add(committed)
        event = End(0, client.producer, committed, self.version)
        if late and self.version >= 2:
            self.late_ends.append(event)
        told = world.ask(event, lost=lost)
        if told is None or unheard:
            return
        if not told.code:
            assert fate.told in (None, committed)
            fate.told = committed
            if self.version >= 2:
                self._gave(client, told)
            client.next_transaction(told.producer if self.version >= 2 else client.producer)
        elif told.code is ErrorCode.TRANSACTION_ABORTABLE:
            fate.asked = {False}
        elif told.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            client.is_dead = True

    @precondition(lambda self: self.late_ends)
    @rule(choice=choices)
    def a_late_end_arrives(self, choice: int) -> None:
        """Nobody hears the answer. It must not end another transaction."""
        self.world.ask(self.late_ends.pop(choice % len(self.late_ends)), lost=False)

    # The world ---------------------------------------------------------------------------------

    @precondition(lambda self: self.world.sending)
    @rule(choice=choices)
    def a_marker_is_written(self, choice: int) -> None:
        self.world.write_marker(choice)

    @rule()
    def writes_are_committed(self) -> None:
        self.world.commit()

    @rule()
    def the_coordinator_crashes(self) -> None:
        self.world.crash()

    @rule(ms=waits)
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    @invariant()
    def what_is_known_is_in_the_log(self) -> None:
        self.world.check_state_is_written()

    @invariant()
    def whom_it_trusted_last_it_knows(self) -> None:
        transaction, given = self.world.shard.transactions.get(ID), self.last_given
        if transaction is None or given is None or given == transaction.successor:
            return
        assert given.id in (transaction.producer_id, transaction.previous_producer_id)
        assert given.id != transaction.producer_id or given.epoch < transaction.epoch

    def teardown(self) -> None:
        self.world.settle()
        self.world.check_all_or_nothing()


class OldHistory(History):
    """Clients that know nothing of transactions version 2. What is late must be verified."""

    version = 0

    @precondition(lambda self: any(c.producer and not c.is_dead for c in self.clients))
    @rule(choice=choices, name=partitions)
    def a_record_comes_where_the_transaction_is_not(
        self, choice: int, name: TopicPartition
    ) -> None:
        """Of an older transaction, or of a client that does not ask: nobody would ever end it."""
        client = self._someone(choice)
        transaction = self.world.shard.transactions[ID]
        if name not in client.touched and name not in transaction.partitions:
            code = self.world.produce(client, name)
            assert code, "it is refused"


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state, machine):
        monkeypatch.setattr(module, "LAST_EPOCH", FEW_EPOCHS)


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestOldHistory = OldHistory.TestCase
TestOldHistory.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
