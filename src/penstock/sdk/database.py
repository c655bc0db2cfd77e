"""Offsets kept beside the results, in the database's own transaction: both are there, or neither. Any DB-API connection.

A row is moved only from the offset where its reader began: a consumer that has lost its partition without knowing it
finds the row moved, and its transaction is rolled back.

The database alone decides where a partition continues. A row without an offset gets the first offset by
auto_offset_reset before anything is read; the offset that the group committed in the broker is not used.
"""

import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message, Place

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer

DatabaseHandler = Callable[[Any, Message], object]

TABLE: Final = "penstock_offsets"
_NONE_YET: Final = -1
_POLL_S: Final = 0.1


class Moved(Exception):
    """Another consumer has moved the row: what we did must be rolled back."""


class OffsetTable:
    """One row for each group and partition. Every method works inside the caller's transaction."""

    def __init__(self, connection: Any, table: str = TABLE, paramstyle: str | None = None) -> None:
        if not table.replace("_", "").replace(".", "").isalnum():
            raise ConfigurationError(f"{table!r} is no name for a table")
        self._table = table
        self._style = paramstyle or _paramstyle(connection)

    def create(self, cursor: Any) -> None:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (group_id VARCHAR(255) NOT NULL, "
            "topic VARCHAR(255) NOT NULL, part INTEGER NOT NULL, next_offset BIGINT NOT NULL, "
            "PRIMARY KEY (group_id, topic, part))"
        )

    def load(self, cursor: Any, group_id: str, places: Sequence[Place]) -> dict[Place, int]:
        """Where to continue in each partition; -1 if that is not decided yet. Makes the rows that are missing."""
        return {place: self._load_one(cursor, group_id, place) for place in places}

    def move(self, cursor: Any, group_id: str, place: Place, before: int, after: int) -> None:
        """Takes the row from `before` to `after`, and keeps others off it until the transaction ends."""
        self._execute(
            cursor,
            f"UPDATE {self._table} SET next_offset = {{}} "
            "WHERE group_id = {} AND topic = {} AND part = {} AND next_offset = {}",
            (after, group_id, *place, before),
        )
        if cursor.rowcount != 1:
            raise Moved(f"{place[0]}-{place[1]} is not at {before} any more")

    def _load_one(self, cursor: Any, group_id: str, place: Place) -> int:
        self._execute(
            cursor,
            f"SELECT next_offset FROM {self._table} "
            "WHERE group_id = {} AND topic = {} AND part = {}",
            (group_id, *place),
        )
        row = cursor.fetchone()
        if row is not None:
            return int(row[0])
        self._execute(
            cursor,
            f"INSERT INTO {self._table} (group_id, topic, part, next_offset) VALUES ({{}}, {{}}, {{}}, {{}})",
            (group_id, *place, _NONE_YET),
        )
        return _NONE_YET

    def _execute(self, cursor: Any, statement: str, values: Sequence[object]) -> None:
        text, parameters = bind(self._style, statement, values)
        cursor.execute(text, parameters)


def bind(style: str, statement: str, values: Sequence[object]) -> tuple[str, Any]:
    """A statement with `{}` for each value, as a driver of that paramstyle takes it.

    >>> bind("qmark", "SELECT {}, {}", (1, 2))
    ('SELECT ?, ?', (1, 2))
    >>> bind("named", "SELECT {}, {}", (1, 2))
    ('SELECT :p1, :p2', {'p1': 1, 'p2': 2})
    """
    numbers = range(1, len(values) + 1)
    match style:
        case "qmark":
            return statement.format(*("?" for _ in numbers)), tuple(values)
        case "format" | "pyformat":
            return statement.format(*("%s" for _ in numbers)), tuple(values)
        case "numeric":
            return statement.format(*(f":{n}" for n in numbers)), tuple(values)
        case "named":
            named = {f"p{n}": value for n, value in zip(numbers, values, strict=True)}
            return statement.format(*(f":p{n}" for n in numbers)), named
        case _:
            raise ConfigurationError(
                f"no paramstyle is called {style!r}",
                remedy="give that of the driver, such as 'qmark'",
            )


def _paramstyle(connection: Any) -> str:
    module = sys.modules.get(type(connection).__module__.partition(".")[0])
    style = getattr(module, "paramstyle", None)
    if style is None:
        raise ConfigurationError(
            f"the driver of {type(connection).__name__} does not tell its paramstyle",
            remedy="give paramstyle='qmark', or what the driver's manual says",
        )
    return str(style)


def refuse_autocommit(connection: Any) -> None:
    """A driver that commits after each statement would part the results from their offsets."""
    commits = getattr(connection, "autocommit", False) is True
    if isinstance(connection, sqlite3.Connection):
        legacy = getattr(connection, "autocommit", -1) == -1  # where isolation_level decides
        commits = commits or (legacy and connection.isolation_level is None)
    if commits:
        raise ConfigurationError(
            "this connection commits after each statement",
            remedy="turn autocommit off: results and offsets have to be one transaction",
        )


class DatabaseRun:
    """A loop of transactions: take messages, move the rows, call the handler for each, commit."""

    def __init__(
        self, consumer: "Consumer", connection: Any, handler: DatabaseHandler, table: OffsetTable
    ) -> None:
        self._consumer = consumer
        self._connection = connection
        self._handler = handler
        self._table = table
        self._positions: dict[Place, int] = {}

    def run(self, batch: int) -> int:
        """Until the consumer is stopped; how many messages were handled."""
        handled = 0
        refuse_autocommit(self._connection)
        self._consumer.assigned.start_from = self._load
        self._consumer.refuse_parts()
        try:
            self._in_transaction(self._table.create)
            self._go_back()  # partitions that came before we were asked
            while not self._consumer.is_stopped:
                handled += self._step(self._consumer.poll_many(batch, _POLL_S))
        finally:
            self._consumer.assigned.start_from = None
            self._consumer.end_run(self._positions)
        return handled

    def _step(self, messages: list[Message]) -> int:
        if not messages:
            return 0
        ends = {message.place: message.offset + 1 for message in messages}

        def work(cursor: Any) -> None:
            for place, end in ends.items():
                before = self._positions[place]
                self._table.move(cursor, self._consumer.group_id, place, before, end)
            for message in messages:
                self._handler(cursor, message)

        try:
            self._in_transaction(work)
        except Moved as moved:
            LOGGER.warning("rolled back and begun again: %s", moved)
            self._go_back()
            return 0
        self._positions.update(ends)
        self._consumer.commit_finished(ends, wait=False)  # only so that the group's lag can be seen
        return len(messages)

    def _go_back(self) -> None:
        self._consumer.go_to(self._load(self._consumer.assignment()))

    def _load(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Read the rows. A row without an offset gets one, so that the first batch can be repeated too."""
        loaded: dict[Place, int] = {}

        def load(cursor: Any) -> None:
            loaded.update(self._table.load(cursor, self._consumer.group_id, places))

        def begin(cursor: Any) -> None:
            for place, first in firsts.items():
                self._table.move(cursor, self._consumer.group_id, place, _NONE_YET, first)

        while True:
            self._in_transaction(load)
            fresh = [place for place, offset in loaded.items() if offset == _NONE_YET]
            if not fresh:
                break
            firsts = self._consumer.assigned.first_offsets(fresh)
            with suppress(Moved):  # another consumer was quicker: its offset counts
                self._in_transaction(begin)
        self._positions.update(loaded)
        return loaded

    def _in_transaction(self, work: Callable[[Any], None]) -> None:
        cursor = self._connection.cursor()
        try:
            work(cursor)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            cursor.close()
