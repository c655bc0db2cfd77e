"""Consumer: a loop over messages, or handlers that are run for each: on threads, in a transaction, or into a database."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.reading import Reading
from penstock.sdk.workers import Order, is_async

if TYPE_CHECKING:
    from penstock.sdk.database import DatabaseHandler
    from penstock.sdk.exactly_once import Transform
    from penstock.sdk.processing import Handler, Options, Summary
    from penstock.sdk.retrying import Backoff, RetryTopics


class Consumer(Reading):
    """Reads topics, alone or as a member of a group. Not thread-safe, but for `stop`.

    >>> with Consumer(bootstrap, "greetings", group_id="readers", value_deserializer="str") as consumer:
    ...     for message in consumer:
    ...         print(message.value)
    ...         consumer.stop()
    hello

    With the same `group_id`, instances share the messages (a work queue); with different ones, each group gets them
    all (publish and subscribe); without one, every instance gets them all from now on (broadcast), and commits nothing.

    `auto_offset_reset` says where to begin without a committed offset: 'earliest' (the default in a group), 'latest',
    'none' (raises NoOffset), or a time (a datetime, or milliseconds since 1970). `on_assign`, `on_revoke` and `on_lost`
    are called with the partitions that come and go; what they raise is raised by the `poll` that called them.
    """

    def run(
        self,
        handler: "Handler",
        *,
        workers: int = 8,
        order: Order = "key",
        retries: int = 5,
        backoff: "Backoff" = 0.1,
        dead_letter: str | None = None,
        retry_topics: "RetryTopics | Sequence[float] | None" = None,
        max_in_flight: int = 1000,
        drain_timeout: float = 30.0,
    ) -> "Summary":
        """Handles messages on `workers` threads until `stop`; commits only what is finished, without gaps.

        `order` is 'key', 'partition' or 'none'. A message that fails is tried `retries` times more, `backoff` seconds
        apart (a number doubles; or a sequence, or a function of the attempt), then put into the `retry_topics` (seconds
        of delay, one topic each), then into the topic `dead_letter`. A coroutine function runs on an event loop, with
        `workers` tasks. At most `max_in_flight` messages are held; then fetching pauses. See `penstock.sdk.processing`.

        >>> def handle(message):
        ...     print(message.value)
        ...     consumer.stop()
        >>> with Consumer(bootstrap, "greetings", group_id="runners", value_deserializer="str") as consumer:
        ...     consumer.run(handle, workers=2, retries=3, dead_letter="greetings.dlq")
        hello
        Summary(handled=1, retried=0, put_off=0, dead_letters=0)
        """
        from penstock.sdk.processing import Options, run_on_threads

        options = Options.of(
            self.topics,
            workers=workers,
            order=order,
            retries=retries,
            backoff=backoff,
            dead_letter=dead_letter,
            retry_topics=retry_topics,
            max_in_flight=max_in_flight,
            drain_timeout_s=drain_timeout,
        )
        if is_async(handler):
            return self._run_on_own_loop(handler, options)
        return run_on_threads(self, handler, options)

    def _run_on_own_loop(self, handler: Any, options: "Options") -> "Summary":
        from penstock.sdk.async_workers import run_on_loop

        if _has_loop():
            raise ConfigurationError(
                "an event loop runs here already, and would stand still",
                remedy="use AsyncConsumer, and await its run",
            )
        with ThreadPoolExecutor(1, "penstock-consumer") as thread:
            return asyncio.run(run_on_loop(self, handler, options, thread))

    def transform(
        self,
        fn: "Transform",
        *,
        to: str,
        transactional_id: str | None = None,
        batch: int = 500,
        transaction_timeout_ms: int = 10_000,
        **settings: Any,
    ) -> int:
        """Exactly once: reads, calls `fn(message)`, sends what it returns to topic `to`, and commits, all in one transaction.

        `fn` returns a value (sent with the message's key), an `Output`, a list of them, or None for nothing. Runs until
        `stop`; needs enable_auto_commit=False. `settings` are those of the producer, such as value_serializer. Give each
        instance a `transactional_id` that stays when it restarts: its open transaction then ends at once.

        >>> def shout(message):
        ...     consumer.stop()
        ...     return message.value.upper()
        >>> with Consumer(bootstrap, "greetings", group_id="shouters", enable_auto_commit=False) as consumer:
        ...     consumer.transform(shout, to="shouts", transactional_id="shouter-1")
        1
        """
        self._check_exactly_once("transaction")
        from penstock.sdk.exactly_once import TransformRun
        from penstock.sdk.outlet import helper_producer

        own = {
            "transactional_id": transactional_id or f"{self.group_id}-{self.client_id}",
            "transaction_timeout_ms": transaction_timeout_ms,
        }
        return TransformRun(self, lambda: helper_producer(self, **own, **settings), fn, to).run(
            batch
        )

    def run_in_database(
        self,
        connection: Any,
        handler: "DatabaseHandler",
        *,
        batch: int = 100,
        table: str = "penstock_offsets",
        paramstyle: str | None = None,
    ) -> int:
        """Exactly once into a database: calls `handler(cursor, message)`, and keeps the offsets in the same transaction.

        Runs until `stop`. `connection` is any DB-API connection that commits by `commit()`. See `penstock.sdk.database`.
        """
        from penstock.sdk.database import DatabaseRun, OffsetTable

        self._check_exactly_once("database")
        books = OffsetTable(connection, table, paramstyle)
        return DatabaseRun(self, connection, handler, books).run(batch)

    def _check_exactly_once(self, keeper: str) -> None:
        if not self.has_group:
            raise ConfigurationError(
                f"the {keeper} keeps the place by the name of a group, and this consumer has none",
                remedy="give Consumer(group_id='…')",
            )
        if self.auto_commits:
            raise ConfigurationError(
                f"this consumer commits by itself, beside the {keeper}",
                remedy="give Consumer(enable_auto_commit=False)",
            )


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
