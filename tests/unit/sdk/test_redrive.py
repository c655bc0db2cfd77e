"""Which letters go back, and how the ledger names them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli import dlq
from penstock.sdk import dead_letters, redrive_ledger
from penstock.sdk.errors import ConfigurationError
from penstock.sdk.letters import Redriven, counted, redrive
from penstock.sdk.redrive_ledger import Entries, check_policy, entry, entry_of

LEDGER = "ledger"


def message(offset: int, origin: str | None = "orders", at: int | None = None) -> Any:
    """A message of orders.dlq, put aside from `origin`-0@`at` if these are given."""
    headers = []
    if origin is not None:
        headers.append((dead_letters.ORIGIN_TOPIC, origin.encode()))
    if at is not None:
        headers.append((dead_letters.ORIGIN_PARTITION, b"0"))
        headers.append((dead_letters.ORIGIN_OFFSET, b"%d" % at))
    return SimpleNamespace(
        topic="orders.dlq",
        partition=0,
        offset=offset,
        headers=headers,
        raw_key=None,
        raw_value=b"v%d" % offset,
    )


class FakeProducer:
    """Remembers what its committed transactions sent."""

    def __init__(self) -> None:
        self.transactions: list[list[tuple[str, bytes]]] = []

    def partition_count(self, topic: str) -> int:
        assert topic
        return 1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._open: list[tuple[str, bytes]] = []
        yield
        self.transactions.append(self._open)

    def send(self, topic: str, value: bytes, key: bytes | None, headers: object = ()) -> None:
        assert headers is not None
        self._open.append((topic, (key or b"") if topic == LEDGER else value))


def names(*entries: str) -> Entries:
    found = Entries()
    for key in entries:
        found.add(key)
    return found


def test_letters_go_back_with_their_entries() -> None:
    producer: Any = FakeProducer()
    letters = [
        message(0, at=7),
        message(1, at=8),
        message(2, None),
        message(3, at=8),
        message(4, at=9),
    ]
    done = redrive(letters, producer, LEDGER, names("orders/0/7/orders"))
    assert done == Redriven(Counter(orders=2), passed_over=1, sent_before=2)
    assert producer.transactions == [
        [
            *(("orders", b"v1"), (LEDGER, b"orders/0/8/orders")),
            *(("orders", b"v4"), (LEDGER, b"orders/0/9/orders")),
        ]
    ]


def test_transactions_are_of_bounded_size() -> None:
    producer: Any = FakeProducer()
    done = redrive([message(n, at=n) for n in range(1_200)], producer, LEDGER, Entries())
    assert done.sent.total() == 1_200
    assert [len(one) for one in producer.transactions] == [1_000, 1_000, 400]


def test_limit_counts_letters_that_are_sent() -> None:
    producer: Any = FakeProducer()
    letters = [message(n, at=n) for n in range(5)]
    known = names("orders/0/0/orders", "orders/0/1/orders")
    assert counted(letters, names("orders/0/0/orders"), to=None, limit=2).sent == {"orders": 2}
    assert redrive(letters, producer, LEDGER, known, limit=2).sent == {"orders": 2}
    assert [value for _, value in producer.transactions[0][::2]] == [b"v2", b"v3"]


def test_another_target_is_another_letter() -> None:
    letters = [message(0, at=7), message(1, None)]
    known = names("orders/0/7/orders")
    assert counted(letters, known, to=None, limit=None) == Redriven(Counter(), 1, 1)
    assert counted(letters, known, to="other", limit=None) == Redriven(Counter(other=2), 0, 0)
    letter = dead_letters.read(letters[0].headers)
    assert known.has_any(letters[0], letter)
    assert not names("orders/0/6/orders").has_any(letters[0], letter)


def test_letter_without_coordinates_is_known_by_its_own_place() -> None:
    for one in (message(3), message(3, "orders", at=-1), message(3, None, at=5)):
        letter = dead_letters.read(one.headers)
        assert entry_of(one, letter, "orders") == "orders.dlq/0/3/orders"


def test_same_record_to_another_topic_is_another_entry() -> None:
    assert entry("a", 0, 1, "a") != entry("a", 0, 1, "b")
    assert entry("a", 1, 0, "a") != entry("a", 0, 1, "a")


@pytest.mark.parametrize("policy", ["delete", "compact,delete", ""])
def test_topic_that_forgets_is_no_ledger(policy: str) -> None:
    check_policy(LEDGER, "compact")
    with pytest.raises(ConfigurationError, match="it forgets which letters went back"):
        check_policy(LEDGER, policy)


def test_command_and_pipeline_have_the_same_ledger() -> None:
    assert dlq._LEDGER == redrive_ledger.DEFAULT_LEDGER
