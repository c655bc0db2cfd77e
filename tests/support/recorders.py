"""Clients of librdkafka that write down all that they send, are told and read, for the checker."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

from tests.support import history as clients
from tests.support.checker import History, Log, Outcome, Partition, Seen, Send
from tests.support.commit_ledger import CommitLedger
from tests.support.server import PATIENCE_S, until

_rd: Any = confluent_kafka
_Error: Any = confluent_kafka.KafkaError
_CERTAIN: Final = frozenset({_Error._PURGE_QUEUE, _Error.MSG_SIZE_TOO_LARGE})  # never left us
_HEAD_START: Final = 20_000  # messages on their way at most
_TXN_PATIENCE_S: Final = 20.0
_COMMITTED: Final = "read_committed"
_LOST_PATIENCE_MS: Final = 4000  # a paused broker keeps its connections, and answers nothing
_QUIET: Final = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": _LOST_PATIENCE_MS,
}


class Worker:
    """A thread that works from `with` to its end, or to `end`. What it dies of is raised there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ending = threading.Event()
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        else:
            self._ending.set()  # what went wrong is told already
            self._thread.join(PATIENCE_S)

    def end(self) -> None:
        self._ending.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} comes to no end"
        if self._death is not None:
            raise self._death

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised again in `end`
            self._death = error

    def work(self) -> None:
        raise NotImplementedError


class _Notes(logging.Handler):
    """Keep librdkafka's last lines about sequence numbers: a failed check on data shows them."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        self._history.notes.append(f"{record.created:.3f} {record.getMessage()}")


def _notes_of(history: History) -> logging.Logger:
    logger = logging.Logger("librdkafka")  # not in logging's table: each history has its own
    logger.addHandler(_Notes(history))
    return logger


class Load(Worker):
    """An idempotent producer that sends to some partitions in turn, at a steady rate."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        partitions: Sequence[Partition],
        *,
        name: str = "load",
        per_second: int = 500,
        padding_bytes: int = 0,
        **config: object,
    ) -> None:
        super().__init__(name)
        self._padding = bytes(padding_bytes)
        self.errors: list[Any] = []  # what a caller of produce would have to deal with
        self._history = history
        self._partitions = partitions
        self._pause_s = 1 / per_second
        self._acks_ns: dict[Partition, list[int]] = {partition: [] for partition in partitions}
        self._sent = 0
        self._last_sent_ns = dict.fromkeys(partitions, 0)  # of those that were acknowledged
        options = {
            "enable_idempotence": True,
            "linger_ms": 5,
            "request_timeout_ms": _LOST_PATIENCE_MS,
            "socket_timeout_ms": _LOST_PATIENCE_MS,
            "topic_metadata_refresh_interval_ms": 1000,
        }
        self._producer = clients.producer(bootstrap, _notes_of(history), **options | config)

    @property
    def acked(self) -> int:
        return sum(map(len, self._acks_ns.values()))

    def work(self) -> None:
        due_s = time.monotonic()
        while not self._ending.is_set():
            self._send(self._partitions[self._sent % len(self._partitions)])
            due_s += self._pause_s
            self._producer.poll(max(0.0, due_s - time.monotonic()))
            while len(self._producer) > _HEAD_START and not self._ending.is_set():
                self._producer.poll(0.01)
        self._producer.flush(PATIENCE_S)
        self._producer.purge()
        self._producer.flush(PATIENCE_S)

    def _send(self, partition: Partition) -> None:
        value = f"{self.name}:{self._sent}".encode() + self._padding
        self._sent += 1
        send = Send(self.name, partition, value, time.monotonic_ns())
        self._history.sends.append(send)

        def delivered(error: Any, message: Any) -> None:
            note_delivery(send, error, message)
            if error is None:
                self._acks_ns[partition].append(send.acked_ns)
                self._last_sent_ns[partition] = send.sent_ns
            else:
                self.errors.append(error)

        topic, index = partition
        self._producer.produce(topic, value, partition=index, on_delivery=delivered)

    def await_more(self, count: int = 500) -> None:
        """Until so many more were acknowledged."""
        goal = self.acked + count
        until(lambda: self.acked >= goal or self._death, f"{count} more acknowledgements")
        assert self._death is None, self._death

    def await_all_partitions(self, since_ns: int) -> None:
        """Until each has acknowledged a message that was sent after that."""
        until(
            lambda: self._death or all(sent > since_ns for sent in self._last_sent_ns.values()),
            "every partition takes messages",
        )
        assert self._death is None, self._death

    def longest_silence_s(self, since_ns: int) -> float:
        """The longest time from then on in which some partition acknowledged nothing."""
        now_ns = time.monotonic_ns()
        found = 0
        for acks in self._acks_ns.values():
            later = [moment for moment in acks if moment > since_ns]
            moments = [since_ns, *later, *([] if self._ending.is_set() else [now_ns])]
            found = max(found, *(after - before for before, after in pairwise(moments)), 0)
        return found / 1e9


def note_delivery(send: Send, error: Any, message: Any) -> None:
    """What a delivery report says of a message."""
    if error is None:
        send.acked_ns = time.monotonic_ns()
        offset = message.offset()  # None: a repeated batch whose first answer was lost
        send.offset = offset if offset is not None and offset >= 0 else None
        send.outcome = Outcome.DONE
    else:
        send.outcome = Outcome.FAILED if error.code() in _CERTAIN else Outcome.UNKNOWN


class TransactionalLoad(Worker):
    """A producer of transactions over some partitions; it commits most, and aborts some."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        partitions: Sequence[Partition],
        rng: Random,
        *,
        name: str = "tx",
        **config: object,
    ) -> None:
        super().__init__(name)
        self.committed = 0
        self.begun = 0
        self.errors: list[Any] = []
        self._history = history
        self._partitions = partitions
        self._rng = rng
        self._options = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 1,
            **_QUIET,
            **{key.replace("_", "."): value for key, value in config.items()},
        }

    def work(self) -> None:
        while not self._ending.is_set():
            producer: Any = _rd.Producer(self._options)
            try:
                producer.init_transactions(_TXN_PATIENCE_S)
                while not self._ending.is_set():
                    self._transact(producer)
            except _rd.KafkaException as error:
                self.errors.append(error.args[0])  # the next producer takes over
            finally:
                producer.purge()

    def _transact(self, producer: Any) -> None:
        """One transaction to its end. Raises when this producer cannot go on."""
        name = f"{self.name}.{self.begun}"
        self.begun += 1
        self._history.transactions[name] = Outcome.UNKNOWN
        commits = self._rng.random() < 0.8
        producer.begin_transaction()
        try:
            for number, (topic, index) in enumerate(self._partitions):
                self._send(producer, name, number, (topic, index))
            producer.flush(_TXN_PATIENCE_S)
            if commits:
                _again_while_retriable(lambda: producer.commit_transaction(_TXN_PATIENCE_S))
                self._history.transactions[name] = Outcome.DONE
                self.committed += 1
        except _rd.KafkaException as error:
            self.errors.append(error.args[0])
            if not error.args[0].txn_requires_abort():
                raise
            commits = False
        if not commits:
            _again_while_retriable(lambda: producer.abort_transaction(_TXN_PATIENCE_S))
            self._history.transactions[name] = Outcome.FAILED

    def _send(self, producer: Any, name: str, number: int, partition: Partition) -> None:
        value = f"{name}:{number}".encode()
        send = Send(self.name, partition, value, time.monotonic_ns(), name)
        self._history.sends.append(send)

        def delivered(error: Any, message: Any) -> None:
            note_delivery(send, error, message)

        producer.produce(partition[0], value, partition=partition[1], on_delivery=delivered)

    def await_more(self, count: int = 20) -> None:
        goal = self.committed + count
        until(lambda: self.committed >= goal or self._death, f"{count} more commits")
        assert self._death is None, self._death


def _again_while_retriable(call: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except _rd.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


class Readers(Worker):
    """Reads some partitions from their start, without a group, and only what is committed."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        partitions: Iterable[Partition],
        *,
        name: str = "reader",
    ) -> None:
        super().__init__(name)
        self.errors: list[Any] = []
        self.count = 0
        self._history = history
        self._consumer = _consumer(bootstrap, **{"auto.offset.reset": "error"})
        self._consumer.assign([_rd.TopicPartition(topic, index, 0) for topic, index in partitions])

    def work(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(1000, timeout=0.05):
                if message.error() is not None:
                    self.errors.append(message.error())
                    continue
                self._history.seen.append(_seen(self.name, 0, message))
                self.count += 1
        self._consumer.close()


class Member(Worker):
    """One member of a consumer group; it commits what it has read, now and then."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topics: Sequence[str],
        *,
        group: str = "g",
        name: str = "member",
        must_get_all: bool = True,
        ledger: CommitLedger | None = None,
        **config: object,
    ) -> None:
        """`must_get_all`: the checker shall ask it of the group. `ledger`: shared by the group."""
        super().__init__(name)
        self.errors: list[Any] = []
        self.count = 0
        self.commits = 0
        self.committed = 0  # how many it had read when a commit was last answered
        self._session = 0
        self._history = history
        self._ledger = ledger or CommitLedger()
        if must_get_all:
            history.groups.setdefault(group, set()).add(name)
        self._consumer = _consumer(
            bootstrap,
            **{
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "allow.auto.create.topics": False,
            },
            **{key.replace("_", "."): value for key, value in config.items()},
        )
        self._consumer.subscribe(list(topics), on_assign=self._assigned)

    def _assigned(self, consumer: Any, partitions: Any) -> None:
        self._session += 1
        self.check_commits([(it.topic, it.partition) for it in partitions])
        consumer.assign(partitions)

    def check_commits(self, partitions: Iterable[Partition]) -> None:
        """Raise DataError if the coordinator returns less than what it acknowledged before."""
        expected = self._ledger.before(partitions)
        wanted = [_rd.TopicPartition(*partition) for partition in expected]
        try:
            found = self._consumer.committed(wanted, timeout=_TXN_PATIENCE_S) if wanted else []
        except _rd.KafkaException as error:  # no answer: the next assignment asks again
            self.errors.append(error.args[0])
            return
        CommitLedger.check(
            expected, {(it.topic, it.partition): it.offset for it in found if it.error is None}
        )

    def work(self) -> None:
        while not self._ending.is_set():
            messages = self._consumer.consume(500, timeout=0.05)
            for message in messages:
                if message.error() is not None:
                    self.errors.append(message.error())
                    continue
                self._history.seen.append(_seen(self.name, self._session, message))
                self.count += 1
            if messages:
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        try:
            done = self._consumer.commit(asynchronous=False)
            self._ledger.note(
                {(it.topic, it.partition): it.offset for it in done if it.error is None}
            )
            self.committed = self.count
            self.commits += 1
        except _rd.KafkaException as error:  # what is not committed is read again
            self.errors.append(error.args[0])

    def await_more(self, count: int = 1, what: str = "count") -> None:
        """Until so many more were read, or (`commits`) so many commits more were answered."""
        goal = getattr(self, what) + count
        until(lambda: getattr(self, what) >= goal or self._death, f"{count} more for {self.name}")
        assert self._death is None, self._death


def _consumer(bootstrap: str, **more: object) -> Any:
    return _rd.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": _COMMITTED,
            "fetch.wait.max.ms": 50,
            **_QUIET,
            **more,
        }
    )


def _seen(reader: str, session: int, message: Any) -> Seen:
    partition = (message.topic(), message.partition())
    return Seen(reader, session, partition, message.offset(), message.value())


def read_logs(
    history: History, bootstrap: str, partitions: Iterable[Partition], isolation: str = _COMMITTED
) -> None:
    """What there is in the end: everything from each partition's start to its end."""
    for partition in partitions:
        history.logs[partition] = _read_log(bootstrap, partition, isolation)


def _read_log(bootstrap: str, partition: Partition, isolation: str) -> Log:
    consumer = _consumer(bootstrap, **{"isolation.level": isolation, "enable.partition.eof": True})
    try:
        place = _rd.TopicPartition(*partition)
        start, end = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
        consumer.assign([_rd.TopicPartition(*partition, start)])
        found: list[tuple[int, bytes]] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline_s, f"{len(found)} messages; the log ends at {end}"
            for message in consumer.consume(10_000, timeout=0.1):
                if message.error() is None:
                    found.append((message.offset(), message.value()))
                elif message.error().code() != _Error._PARTITION_EOF:
                    raise AssertionError(message.error())
                elif message.offset() >= end:
                    return found
    finally:
        consumer.close()
