"""The transaction protocol, one dialogue each: who is answered what, what is written, whom the partitions hear of."""

from dataclasses import replace

import pytest

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Event,
    Initialize,
    Loaded,
    Markers,
    MarkersWritten,
    NeedProducerId,
    Outcome,
    Overdue,
    Reply,
    SendMarkers,
    Write,
)
from penstock.transactions.machine import verify
from penstock.transactions.shard import Shard
from penstock.transactions.state import LAST_EPOCH, Now, Producer, Status, Transaction, entry

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
E = ErrorCode
OLD, NEW = 0, 2
TIMEOUT_MS = 60_000


class Scene:
    """One transactional id. Effects are done at once; what was asked is in `told`, markers in `sent`."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.now = Now(1000, 1_000_000)
        self.fresh_id = 6
        self.told: list[Outcome] = []
        self.sent: list[Markers] = []
        self.kinds: list[str] = []  # of the effects of the last event

    @property
    def txn(self) -> Transaction:
        return self.shard.transactions["tx"]

    def title(self) -> str:
        return self.txn.status.title

    def happen(self, event: Event) -> None:
        self.kinds = []
        self._do(self.shard.step("tx", event, self.now))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.kinds.append(type(effect).__name__)
            match effect:
                case Reply(_, outcome):
                    self.told.append(outcome)
                case SendMarkers(markers):
                    self.sent.append(markers)
                case NeedProducerId(request):
                    self.fresh_id += 1
                    self._do(
                        self.shard.step("tx", replace(request, fresh_id=self.fresh_id), self.now)
                    )
                case Write():
                    pass

    def ask(self, event: Event) -> Outcome:
        self.told = []
        self.happen(event)
        (outcome,) = self.told
        return outcome

    def initialize(self, expected: Producer | None = None) -> Outcome:
        return self.ask(Initialize(None, TIMEOUT_MS, expected))

    def add(self, producer: Producer, *names: TopicPartition, version: int = OLD) -> ErrorCode:
        return self.ask(Add(None, producer, frozenset(names), version)).code

    def end(self, producer: Producer, *, committed: bool = True, version: int = OLD) -> Outcome:
        return self.ask(End(None, producer, committed, version))

    def markers_are_written(self) -> None:
        self.happen(MarkersWritten(self.sent[-1].producer))

    def begun(self, version: int = OLD) -> Producer:
        """A producer with an open transaction in A."""
        producer = self.initialize().producer
        assert self.add(producer, A, version=version) is E.NONE
        return producer

    def wait(self, ms: int) -> None:
        self.now = Now(self.now.ms + ms, self.now.wall_ms + ms)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Beginning ---------------------------------------------------------------------------------------


def test_the_first_producer_gets_a_new_id_and_epoch_zero(scene: Scene) -> None:
    assert scene.initialize() == Outcome(E.NONE, Producer(7, 0))
    assert scene.kinds == ["NeedProducerId", "Write", "Reply"]
    assert scene.txn.status is Status.EMPTY


def test_the_next_one_keeps_the_id_and_fences_the_first(scene: Scene) -> None:
    first = scene.initialize().producer
    second = scene.initialize().producer
    assert second == Producer(first.id, first.epoch + 1)
    assert scene.add(first, A) is E.PRODUCER_FENCED
    assert scene.end(first).code is E.PRODUCER_FENCED
    assert scene.add(second, A) is E.NONE


def test_an_open_transaction_is_aborted_first_and_the_newcomer_asks_again(scene: Scene) -> None:
    first = scene.begun()
    assert scene.initialize().code is E.CONCURRENT_TRANSACTIONS
    assert scene.kinds == ["Write", "SendMarkers", "Reply"]
    fence = Producer(first.id, first.epoch + 1)
    assert scene.sent == [Markers("tx", fence, False, (A,), True)]
    assert scene.initialize().code is E.CONCURRENT_TRANSACTIONS, "until all partitions know"
    scene.markers_are_written()
    assert scene.initialize().producer == Producer(first.id, first.epoch + 2)
    assert scene.end(first).code is E.PRODUCER_FENCED


def test_a_producer_can_go_on_with_a_new_epoch_and_ask_for_it_twice(scene: Scene) -> None:
    first = scene.initialize().producer
    second = scene.initialize(first).producer
    assert second == Producer(first.id, first.epoch + 1)
    assert scene.initialize(first).producer == second, "it did not hear the answer"
    third = scene.initialize(second).producer
    assert scene.initialize(first).code is E.PRODUCER_FENCED
    assert scene.initialize(third).producer.epoch == third.epoch + 1


def test_a_producer_with_an_open_transaction_can_go_on_as_librdkafka_does(scene: Scene) -> None:
    first = scene.begun()
    assert scene.initialize(first).code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    assert scene.initialize(first).producer == Producer(first.id, first.epoch + 1)


def test_a_fenced_producer_cannot_abort_its_successors_transaction(scene: Scene) -> None:
    first = scene.initialize().producer
    second = scene.begun()
    assert scene.initialize(first).code is E.PRODUCER_FENCED
    assert scene.txn.status is Status.ONGOING
    assert scene.end(second).code is E.NONE


def test_a_stranger_is_not_taken_for_the_producer(scene: Scene) -> None:
    first = scene.initialize().producer
    stranger = Producer(first.id + 50, 0)
    assert scene.initialize(stranger).code is E.PRODUCER_FENCED
    assert scene.add(stranger, A) is E.INVALID_PRODUCER_ID_MAPPING
    assert scene.end(stranger).code is E.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_whose_id_was_forgotten_gets_a_new_one(scene: Scene) -> None:
    assert scene.initialize(Producer(3, 9)).producer == Producer(7, 0)


def test_who_uses_an_id_that_nobody_initialized_is_told_so(scene: Scene) -> None:
    assert scene.add(Producer(1, 0), A) is E.INVALID_PRODUCER_ID_MAPPING
    assert scene.end(Producer(1, 0)).code is E.INVALID_PRODUCER_ID_MAPPING
    assert verify(None, Producer(1, 0), A) is E.INVALID_PRODUCER_ID_MAPPING
    scene.happen(Overdue())
    scene.happen(Loaded())
    assert scene.kinds == []


def test_when_epochs_are_used_up_the_producer_gets_a_new_id(scene: Scene) -> None:
    first = scene.initialize().producer
    scene.txn.epoch = LAST_EPOCH - 1
    last = scene.txn.producer
    assert scene.initialize(last).producer == Producer(8, 0)
    assert scene.txn.previous_producer_id == first.id
    assert scene.initialize(last).producer == Producer(8, 0), "it did not hear the answer"


def test_the_last_epoch_only_fences_and_nobody_can_use_it(scene: Scene) -> None:
    scene.initialize()
    scene.txn.epoch = LAST_EPOCH - 1
    scene.add(scene.txn.producer, A)
    assert scene.initialize().code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    nobody = scene.txn.producer
    assert nobody.epoch == LAST_EPOCH

    assert scene.add(nobody, A) is E.PRODUCER_FENCED
    assert verify(scene.txn, nobody, A) is E.PRODUCER_FENCED
    assert scene.end(nobody, committed=False, version=NEW).code is E.PRODUCER_FENCED
    assert scene.initialize().producer == Producer(8, 0)


# In a transaction --------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction(scene: Scene) -> None:
    producer = scene.initialize().producer
    scene.wait(5)
    assert scene.add(producer, A) is E.NONE
    assert (scene.txn.status, scene.txn.started) == (Status.ONGOING, scene.now)
    scene.wait(5)
    assert scene.add(producer, A, B) is E.NONE
    assert scene.txn.started.ms == scene.now.ms - 5
    assert scene.txn.partitions == {A, B}


def test_what_is_in_the_transaction_already_is_not_written_again(scene: Scene) -> None:
    producer = scene.begun()
    assert scene.add(producer, A) is E.NONE
    assert scene.kinds == ["Reply"]


def test_nothing_is_added_while_the_transaction_ends(scene: Scene) -> None:
    producer = scene.begun()
    scene.end(producer)
    assert scene.add(producer, B) is E.CONCURRENT_TRANSACTIONS
    assert verify(scene.txn, producer, A) is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    assert scene.add(producer, B) is E.NONE
    assert scene.txn.partitions == {B}


def test_only_what_will_be_ended_may_be_written(scene: Scene) -> None:
    producer = scene.begun()
    assert verify(scene.txn, producer, A) is E.NONE
    assert verify(scene.txn, producer, B) is E.TRANSACTION_ABORTABLE
    assert verify(scene.txn, Producer(producer.id, 9), A) is E.PRODUCER_FENCED
    scene.end(producer)
    scene.markers_are_written()
    assert verify(scene.txn, producer, A) is E.TRANSACTION_ABORTABLE


# Ending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_is_decided_then_told_then_completed(scene: Scene, committed: bool) -> None:
    producer = scene.begun()
    scene.add(producer, B)
    assert scene.end(producer, committed=committed) == Outcome(E.NONE, producer)
    assert scene.kinds == ["Write", "SendMarkers", "Reply"]
    assert scene.sent == [Markers("tx", producer, committed, (A, B), False)]
    assert scene.end(producer, committed=committed).code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    assert scene.kinds == ["Write"]
    assert scene.end(producer, committed=committed).code is E.NONE, "it asks again"
    assert scene.end(producer, committed=not committed).code is E.INVALID_TXN_STATE
    assert not scene.txn.partitions


def test_an_old_client_cannot_end_what_it_did_not_begin(scene: Scene) -> None:
    producer = scene.initialize().producer
    assert scene.end(producer).code is E.INVALID_TXN_STATE
    assert scene.end(producer, committed=False).code is E.INVALID_TXN_STATE


def test_markers_of_another_epoch_complete_nothing(scene: Scene) -> None:
    producer = scene.begun()
    scene.end(producer, version=NEW)
    scene.happen(MarkersWritten(producer))
    assert scene.title() == "PrepareCommit"
    scene.markers_are_written()
    assert scene.title() == "CompleteCommit"
    scene.markers_are_written()
    assert scene.kinds == []


# Transactions version 2 --------------------------------------------------------------------------


def test_each_end_takes_an_epoch(scene: Scene) -> None:
    producer = scene.begun(NEW)
    bumped = Producer(producer.id, producer.epoch + 1)
    assert scene.end(producer, version=NEW) == Outcome(E.NONE, bumped)
    assert scene.sent == [Markers("tx", bumped, True, (A,), True)]
    assert scene.end(producer, version=NEW).code is E.CONCURRENT_TRANSACTIONS, "it asks again"
    assert scene.add(bumped, A, version=NEW) is E.CONCURRENT_TRANSACTIONS
    assert scene.end(bumped, committed=False, version=NEW).code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    assert scene.end(producer, version=NEW) == Outcome(E.NONE, bumped)
    assert scene.add(producer, A, version=NEW) is E.PRODUCER_FENCED, "it is late"
    assert scene.add(bumped, A, version=NEW) is E.NONE


def test_a_late_end_never_ends_the_next_transaction(scene: Scene) -> None:
    producer = scene.begun(NEW)
    bumped = scene.end(producer, version=NEW).producer
    scene.markers_are_written()
    scene.add(bumped, B, version=NEW)
    for committed in (True, False):
        late = scene.end(producer, committed=committed, version=NEW)
        assert late.code is E.PRODUCER_FENCED
    assert scene.txn.status is Status.ONGOING


def test_an_end_can_be_asked_for_again_after_a_crash(scene: Scene) -> None:
    producer = scene.begun(NEW)
    bumped = scene.end(producer, version=NEW).producer
    assert crashed(scene) == 1, "the markers are sent again"
    assert scene.end(producer, version=NEW).code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    crashed(scene)
    assert scene.end(producer, version=NEW) == Outcome(E.NONE, bumped)


def test_a_new_client_may_abort_nothing(scene: Scene) -> None:
    producer = scene.initialize().producer
    assert scene.end(producer, version=NEW).code is E.INVALID_TXN_STATE, "nothing to commit"
    aborted = scene.end(producer, committed=False, version=NEW)
    assert aborted == Outcome(E.NONE, Producer(producer.id, producer.epoch + 1))
    assert scene.kinds == ["Write", "Reply"]
    assert scene.end(producer, committed=False, version=NEW) == aborted, "it asks again"
    again = scene.end(aborted.producer, committed=False, version=NEW)
    assert again.producer.epoch == producer.epoch + 2


@pytest.mark.parametrize("committed", [True, False])
def test_the_last_epoch_brings_a_new_id(scene: Scene, committed: bool) -> None:
    scene.initialize()
    scene.txn.epoch = LAST_EPOCH - 1
    last = scene.txn.producer
    scene.add(last, A, version=NEW)
    ended = scene.end(last, committed=committed, version=NEW)
    assert ended == Outcome(E.NONE, Producer(8, 0))
    assert scene.sent[-1].producer == Producer(last.id, LAST_EPOCH)
    assert scene.add(ended.producer, A, version=NEW) is E.CONCURRENT_TRANSACTIONS
    assert scene.end(last, committed=committed, version=NEW).code is E.CONCURRENT_TRANSACTIONS
    scene.markers_are_written()
    assert scene.end(last, committed=committed, version=NEW) == ended, "it asks again"
    assert scene.add(last, A, version=NEW) is E.INVALID_PRODUCER_ID_MAPPING
    assert scene.add(ended.producer, A, version=NEW) is E.NONE


def test_aborting_nothing_with_the_last_epoch_brings_a_new_id_too(scene: Scene) -> None:
    scene.initialize()
    scene.txn.epoch = LAST_EPOCH - 1
    assert scene.end(scene.txn.producer, committed=False, version=NEW).producer == Producer(8, 0)


def test_a_client_may_change_to_version_2_in_the_middle(scene: Scene) -> None:
    old = scene.begun(OLD)
    scene.end(old, version=OLD)
    scene.markers_are_written()
    scene.add(old, A, version=NEW)
    assert scene.end(old, version=NEW).producer.epoch == old.epoch + 1


# Time --------------------------------------------------------------------------------------------


def test_a_transaction_that_lasts_too_long_is_aborted_and_its_producer_fenced(scene: Scene) -> None:
    producer = scene.begun()
    scene.wait(TIMEOUT_MS - 1)
    scene.happen(Overdue())
    assert scene.kinds == []
    assert list(scene.shard.overdue(scene.now)) == []
    scene.wait(1)
    assert list(scene.shard.overdue(scene.now)) == ["tx"]
    scene.happen(Overdue())
    assert scene.kinds == ["Write", "SendMarkers"]
    assert scene.sent == [Markers("tx", Producer(7, producer.epoch + 1), False, (A,), True)]
    assert scene.end(producer).code is E.PRODUCER_FENCED
    scene.markers_are_written()
    assert scene.add(producer, A) is E.PRODUCER_FENCED


def test_a_new_client_that_took_too_long_aborts_and_goes_on(scene: Scene) -> None:
    producer = scene.begun(NEW)
    scene.wait(TIMEOUT_MS)
    scene.happen(Overdue())
    scene.markers_are_written()
    assert scene.end(producer, version=NEW).code is E.TRANSACTION_ABORTABLE
    aborted = scene.end(producer, committed=False, version=NEW)
    assert aborted == Outcome(E.NONE, Producer(producer.id, producer.epoch + 1))
    assert scene.add(aborted.producer, A, version=NEW) is E.NONE


def test_a_fenced_new_client_does_not_get_the_newcomers_epoch(scene: Scene) -> None:
    producer = scene.begun(NEW)
    scene.initialize()
    scene.markers_are_written()
    for _ in range(2):
        zombie = scene.end(producer, committed=False, version=NEW)
        assert zombie.code is E.PRODUCER_FENCED
        crashed(scene)


def test_who_took_too_long_with_the_last_epoch_must_begin_anew(scene: Scene) -> None:
    scene.initialize()
    scene.txn.epoch = LAST_EPOCH - 1
    last = scene.txn.producer
    scene.add(last, A, version=NEW)
    scene.wait(TIMEOUT_MS)
    scene.happen(Overdue())
    scene.markers_are_written()
    assert scene.end(last, committed=False, version=NEW).code is E.PRODUCER_FENCED
    assert scene.initialize(last).producer == Producer(8, 0)


def test_only_ids_at_rest_are_forgotten_and_only_after_long_silence(scene: Scene) -> None:
    producer = scene.begun()
    scene.wait(1000)
    assert list(scene.shard.expired(scene.now, 1000)) == []
    scene.end(producer)
    scene.markers_are_written()
    scene.wait(999)
    assert list(scene.shard.expired(scene.now, 1000)) == []
    scene.wait(1)
    assert list(scene.shard.expired(scene.now, 1000)) == ["tx"]
    scene.initialize()
    assert scene.shard.forget("tx", scene.now, 1000) == [], "it was used meanwhile"
    scene.wait(1000)
    (gone,) = scene.shard.forget("tx", scene.now, 1000)
    assert isinstance(gone, Write)
    assert gone.value is None
    assert scene.shard.forget("tx", scene.now, 1000) == []
    assert scene.add(producer, A) is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("committed", [True, False])
def test_what_was_decided_is_finished_after_a_crash(
    scene: Scene, committed: bool, version: int
) -> None:
    producer = scene.begun(version)
    scene.end(producer, committed=committed, version=version)
    before = scene.sent[-1]
    assert crashed(scene) == 1
    assert scene.sent[-1] == before
    scene.markers_are_written()
    assert crashed(scene) == 0


# The last epoch ----------------------------------------------------------------------------------


def stored(scene: Scene, epoch: int, status: Status, version: int) -> Producer:
    """What the log has of a transaction in A, whoever wrote it."""
    scene.begun(version)
    scene.txn.epoch, scene.txn.status, scene.txn.version = epoch, status, version
    producer = scene.txn.producer
    crashed(scene)
    return producer


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("ended_by", ["time", "newcomer", "itself"])
def test_a_transaction_that_was_stored_in_the_last_epoch_is_ended_in_it(
    scene: Scene, version: int, ended_by: str
) -> None:
    last = stored(scene, LAST_EPOCH, Status.ONGOING, version)
    if ended_by == "time":
        scene.wait(TIMEOUT_MS)
        scene.happen(Overdue())
    else:
        expected = last if ended_by == "itself" else None
        assert scene.initialize(expected).code is E.CONCURRENT_TRANSACTIONS
    assert scene.sent == [Markers("tx", last, False, (A,), False)]
    assert crashed(scene) == 1
    assert scene.sent[0] == scene.sent[1], "after a crash the same"
    scene.markers_are_written()
    assert scene.title() == "CompleteAbort"
    assert scene.initialize() == Outcome(E.NONE, Producer(8, 0))
    assert scene.add(last, A, version=version) is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("epoch", [LAST_EPOCH - 2, LAST_EPOCH - 1, LAST_EPOCH])
@pytest.mark.parametrize("status", [Status(number) for number in range(6)])
def test_no_epoch_past_the_last_is_ever_given_or_stored_whatever_the_log_has(
    scene: Scene, version: int, epoch: int, status: Status
) -> None:
    last = stored(scene, epoch, status, version)
    seen = []
    for _ in range(4):
        crashed(scene)
        if scene.sent:
            scene.markers_are_written()
        scene.end(last, committed=False, version=version)
        scene.wait(TIMEOUT_MS)
        scene.happen(Overdue())
        if scene.sent:
            scene.markers_are_written()
        told = scene.initialize()
        seen.append(told.code)
        assert told.code is not E.NONE or told.producer.epoch < LAST_EPOCH
        entry(scene.txn)  # it fits into 16 bits
        if told.code is E.NONE:
            last = told.producer
            assert scene.add(last, A, version=version) is E.NONE
    assert E.NONE in seen
    assert last.id == 8


def crashed(scene: Scene) -> int:
    """The shard is read back; how many transactions must be finished."""
    written = [entry(transaction) for transaction in scene.shard.transactions.values()]
    scene.shard = Shard()
    for key, value in written:
        scene.shard.apply(key, value, scene.now)
    unfinished = scene.shard.load(scene.now)
    for _, effects in unfinished:
        scene._do(effects)
    return len(unfinished)
