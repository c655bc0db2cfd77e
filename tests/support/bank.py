"""Processes of a bank, to be killed: movers transfer money in transactions, auditors copy what was moved, exactly once.

Run as `python -m tests.support.bank ROLE BOOTSTRAP NAME SEED LEDGER`. A ledger is what the process
believes of each of its transactions; it is only ever added to.
"""

import faulthandler
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import confluent_kafka

from penstock.model.errors import ErrorCode
from tests.support.raw_transactions import RawTransactional, Refused

ACCOUNTS = 20
PARTITIONS = 4
MOVES, JOURNAL, GROUP = "moves", "journal", "auditors"
TIMEOUT_MS = 4000
_STUCK_S = 15  # librdkafka 2.16 may lose what it is about to send to a group's coordinator, and wait for ever
_FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
Legs = list[tuple[int, bytes]]  # partition, value


class Ledger:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - as long as the process lives

    def note(self, what: str, name: str) -> None:
        self._file.write(f"{what} {name}\n")


def legs(rng: random.Random, name: str) -> Legs:
    """One to three transfers between accounts, each of two legs, which belong together."""
    count = rng.randrange(1, 4)
    found: Legs = []
    for transfer in range(count):
        giver, taker = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 1000)
        for account, change in ((giver, -amount), (taker, amount)):
            leg = {
                "txn": name,
                "transfer": transfer,
                "legs": 2 * count,
                "account": account,
                "amount": change,
            }
            found.append((account % PARTITIONS, json.dumps(leg).encode()))
    return found


# Movers ------------------------------------------------------------------------------------------


def move_with_version_2(bootstrap: str, name: str, rng: random.Random, ledger: Ledger) -> None:
    producer = RawTransactional(bootstrap, name, timeout_ms=TIMEOUT_MS).initialize()
    number = 0
    while True:
        number += 1
        txn = f"{name}/{producer.producer.id}.{producer.producer.epoch}.{number}"
        committed = rng.random() < 0.85
        ledger.note("begun", txn)
        try:
            for partition, value in legs(rng, txn):
                producer.send(MOVES, partition, value)
            if committed:
                ledger.note("ending", txn)
            producer.end(committed=committed)
        except Refused as refused:
            if refused.code in _FENCED:
                return  # another has taken over
            committed = False
            try:
                producer.end(committed=False)
            except Refused:
                return
        ledger.note("committed" if committed else "aborted", txn)


def move_with_librdkafka(bootstrap: str, name: str, rng: random.Random, ledger: Ledger) -> None:
    number = 0
    while True:
        producer = _confluent_producer(bootstrap, name)
        run = rng.getrandbits(32)
        while True:
            number += 1
            txn = f"{name}/{run}.{number}"
            outcome = _move(producer, rng, ledger, txn)
            if outcome == "fenced":
                return
            ledger.note(outcome, txn)
            if outcome == "lost":
                break


def _confluent_producer(bootstrap: str, name: str) -> Any:
    producer: Any = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "message.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
        }
    )
    _persist(lambda: producer.init_transactions(5))
    return producer


def _persist(work: Any) -> None:
    """Until it is done, or cannot be."""
    while True:
        try:
            work()
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def _move(producer: Any, rng: random.Random, ledger: Ledger, txn: str) -> str:
    """committed, aborted, fenced, or lost: the producer cannot go on."""
    committed = rng.random() < 0.85
    try:
        producer.begin_transaction()
        ledger.note("begun", txn)
        for partition, value in legs(rng, txn):
            producer.produce(MOVES, value, partition=partition)
        if committed:
            ledger.note("ending", txn)
            _persist(lambda: producer.commit_transaction(5))
        else:
            _persist(lambda: producer.abort_transaction(5))
    except confluent_kafka.KafkaException as failed:
        error = failed.args[0]
        if error.code() == confluent_kafka.KafkaError._FENCED:
            return "fenced"
        if not error.txn_requires_abort():
            return "lost"
        try:
            _persist(lambda: producer.abort_transaction(5))
        except confluent_kafka.KafkaException as again:
            code = again.args[0].code()
            return "fenced" if code == confluent_kafka.KafkaError._FENCED else "lost"
        return "aborted"
    return "committed" if committed else "aborted"


# Auditors ----------------------------------------------------------------------------------------


def audit(bootstrap: str, name: str, _: random.Random, __: Ledger) -> None:
    """Copy every move into the journal; what was read and what was written are one transaction."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
        }
    )
    consumer.subscribe([MOVES])
    producer = _confluent_producer(bootstrap, name)
    while True:
        messages = [m for m in consumer.consume(50, timeout=0.2) if m.error() is None]
        if not messages:
            continue
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        try:
            _copy(messages, consumer, producer)
        except confluent_kafka.KafkaException as error:
            sys.stderr.write(f"{name}: {error}\n")
            return  # the next one begins where the last committed transaction ended
        finally:
            faulthandler.cancel_dump_traceback_later()


def _copy(messages: list[Any], consumer: Any, producer: Any) -> None:
    producer.begin_transaction()
    for message in messages:
        producer.produce(JOURNAL, message.value(), partition=message.partition())
    places = [p for p in consumer.position(consumer.assignment()) if p.offset >= 0]
    member = consumer.consumer_group_metadata()
    _persist(lambda: producer.send_offsets_to_transaction(places, member, 5))
    _persist(lambda: producer.commit_transaction(5))


ROLES = {"old-mover": move_with_librdkafka, "new-mover": move_with_version_2, "auditor": audit}

if __name__ == "__main__":
    role, bootstrap, name, seed, ledger_path = sys.argv[1:]
    Path(ledger_path).parent.mkdir(exist_ok=True)
    ROLES[role](bootstrap, name, random.Random(int(seed)), Ledger(ledger_path))
    os._exit(0)  # at once: librdkafka would stay in its group until it is done with everything
