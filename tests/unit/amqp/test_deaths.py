"""Dead letters: x-death, the headers of the first and last death, and cycles."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.amqp.deaths import (
    MAX_DEATHS,
    DeadLetter,
    DeathReason,
    dead_letter,
    is_cycle,
    read_deaths,
)
from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.tables import as_plain, as_table

REJECTED, EXPIRED, MAXLEN = DeathReason.REJECTED, DeathReason.EXPIRED, DeathReason.MAXLEN


def message(headers: dict[str, Any] | None = None, **properties: Any) -> RoutedMessage:
    table = as_table(headers) if headers is not None else None
    return RoutedMessage("x", "k", encode_properties(Properties(headers=table, **properties)))


def die(
    dying: RoutedMessage,
    queue: str = "q",
    reason: DeathReason = EXPIRED,
    routing_key: str | None = None,
    now_ms: int = 5000,
) -> DeadLetter:
    return dead_letter(
        dying, queue=queue, reason=reason, exchange="dlx", routing_key=routing_key, now_ms=now_ms
    )


def headers(letter: DeadLetter) -> dict[str, Any]:
    return {name: as_plain(value) for name, value in letter.message.headers.items()}


def test_the_first_death() -> None:
    letter = die(message({"a": 1}, expiration="100", message_id="m"))
    assert (letter.message.exchange, letter.message.routing_key) == ("dlx", "k")
    assert letter.message.properties.message_id == "m"
    assert letter.message.properties.expiration is None
    assert headers(letter) == {
        "a": 1,
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": 5,
                "exchange": "x",
                "routing-keys": ["k"],
                "original-expiration": "100",
            }
        ],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
    }
    assert letter.message.headers["x-death"][1][0][1]["count"] == ("l", 1)
    assert letter.message.headers["x-death"][1][0][1]["time"] == ("T", 5)


def test_later_deaths_count_and_come_first() -> None:
    first = die(message(), "q")
    second = die(first.message, "r", MAXLEN)
    third = die(second.message, "q", now_ms=99_000)
    deaths = headers(third)["x-death"]
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
        ("q", "expired", 2),
        ("r", "maxlen", 1),
    ]
    assert deaths[0]["time"] == 5  # of the first time
    assert headers(third)["x-first-death-queue"] == "q"
    assert headers(second)["x-last-death-queue"] == "r"
    assert headers(third)["x-last-death-exchange"] == "dlx"


def test_reasons_are_counted_apart() -> None:
    letter = die(die(message(), "q", EXPIRED).message, "q", REJECTED)
    assert [death["reason"] for death in headers(letter)["x-death"]] == ["rejected", "expired"]


def test_routing_keys_with_cc_are_kept_or_replaced() -> None:
    dying = message({"CC": ["c"], "BCC": ["b"]})
    kept = die(dying)
    assert kept.message.routing_keys() == ["k", "c"]
    assert headers(kept)["x-death"][0]["routing-keys"] == ["k", "c"]
    replaced = die(dying, routing_key="other")
    assert replaced.message.routing_keys() == ["other"]
    assert headers(replaced)["x-death"][0]["routing-keys"] == ["k", "c"]
    assert "BCC" not in headers(replaced)


@pytest.mark.parametrize(
    "forged", ["text", [1, "a"], [{"queue": 1, "reason": "x"}], [{"count": 5}], {"a": 1}]
)
def test_what_clients_write_into_x_death_does_no_harm(forged: Any) -> None:
    letter = die(message({"x-death": forged}))
    assert len(read_deaths(letter.message.headers)) == 1


def test_a_forged_count_cannot_grow_without_bound() -> None:
    forged = {"queue": "q", "reason": "expired", "count": (1 << 63) - 1}
    letter = die(message({"x-death": [forged]}))
    assert headers(letter)["x-death"][0]["count"] == 2


def test_a_message_that_died_too_often_goes_no_further() -> None:
    dying = message()
    for number in range(MAX_DEATHS):
        letter = die(dying, f"q{number}")
        assert letter.obstacle is None
        dying = letter.message
    assert die(dying, "q0").obstacle is None
    assert die(dying, "one more").obstacle is not None


def test_headers_of_the_client_can_leave_no_room() -> None:
    assert die(message({str(number): 1 for number in range(9990)})).obstacle is not None


def test_a_queue_that_the_message_died_in_is_a_cycle() -> None:
    letter = die(die(message(), "q").message, "r")
    assert is_cycle("q", letter)
    assert is_cycle("r", letter)
    assert not is_cycle("s", letter)


def test_a_rejection_on_the_way_ends_the_cycle() -> None:
    rejected = die(message(), "q", REJECTED)
    assert not is_cycle("q", rejected)
    on = die(die(message(), "q").message, "r", REJECTED)
    later = die(on.message, "s")
    assert not is_cycle("q", later)  # rejected in r since
    assert is_cycle("s", later)
