"""`penstock dlq`: letters that a run has put aside are listed, shown, and sent back exactly once."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock import Consumer, Producer
from penstock.sdk.message import Message
from penstock.testing import Broker
from tests.support.command import Done, penstock_command
from tests.support.failures import DataError

pytestmark = pytest.mark.cluster
PATIENCE_S = 30.0

Command = Callable[..., Done]


@pytest.fixture
def run(broker: Broker) -> Command:
    def call(*words: object) -> Done:
        return penstock_command(*words, PENSTOCK_BOOTSTRAP=broker.bootstrap)

    return call


def work(broker: Broker, topic: str, count: int, *, fails: bool) -> list[Message]:
    """A group's run over `count` messages, all of which fail or all of which are fine."""
    done: list[Message] = []
    with Consumer(broker.bootstrap, topic, group_id=f"work-{topic}") as consumer:

        def handler(message: Message) -> None:
            done.append(message)
            if len(done) == count:
                consumer.stop()
            if fails:
                raise ValueError(f"no {message.value.decode()}")

        consumer.run(handler, workers=1, retries=0, dead_letter=f"{topic}.dlq")
    return done


@pytest.fixture
def topic(broker: Broker) -> str:
    """Three messages, all in its dead-letter topic."""
    name = broker.create_topic()
    with Producer(broker.bootstrap) as producer:
        for n in range(3):
            producer.send(name, f"order {n}", f"k{n}", {"own": b"h"})
    work(broker, name, 3, fails=True)
    return name


def test_letters_are_listed_with_their_story(run: Command, topic: str) -> None:
    topics = run("dlq", "list", "--json").json()
    assert {"topic": f"{topic}.dlq", "messages": 3} in topics
    letters = run("dlq", "list", f"{topic}.dlq", "--json").json()
    assert [(one["origin_topic"], one["origin_offset"], one["error"]) for one in letters] == [
        (topic, n, f"no order {n}") for n in range(3)
    ]
    assert not any(one["sent_back"] for one in letters)
    table = run("dlq", "list", f"{topic}.dlq", "-n", 1)
    assert table.status == 0
    assert f"{topic}-0@0" in table.out
    assert "ValueError: no order 0" in table.out


def test_one_letter_is_shown_in_full(run: Command, topic: str) -> None:
    shown = run("dlq", "show", f"{topic}.dlq", "--partition", 0, "--offset", 1)
    assert shown.status == 0
    assert "order 1" in shown.out
    assert "own=h" in shown.out
    assert "order 0" not in shown.out
    (as_json,) = run("dlq", "show", f"{topic}.dlq", "-n", 1, "--json").json_lines()
    assert as_json["value"] == "order 0"
    assert run("dlq", "show", f"{topic}.dlq", "--offset", 1).status == 2


def test_letters_go_back_once_with_the_headers_they_had(
    broker: Broker, run: Command, topic: str
) -> None:
    dead = f"{topic}.dlq"
    assert run("dlq", "redrive", dead, "--dry-run", "--json").json()["sent"] == 3
    assert run("dlq", "redrive", dead, "-n", 2).out == f"sent 2 letters of {dead}: 2 to {topic}\n"
    assert run("dlq", "redrive", dead, "--json").json() == {
        "topic": dead,
        "sent": 1,
        "to": {topic: 1},
        "passed_over": 0,
        "sent_before": 2,
        "dry_run": False,
    }
    nothing = run("dlq", "redrive", dead)
    assert nothing.out == f"sent 0 letters of {dead}\n"
    assert nothing.err == "left out 3 letters sent back before: give --again to send again\n"
    done = work(broker, topic, 3, fails=False)
    assert [message.value for message in done] == [b"order 0", b"order 1", b"order 2"]
    assert done[0].headers == [("own", b"h"), ("penstock-redriven", b"1")]
    assert all(one["sent_back"] for one in run("dlq", "list", dead, "--json").json())
    assert run("dlq", "redrive", dead, "--again", "--dry-run", "--json").json()["sent"] == 3


def test_letters_that_went_back_are_known_when_brokers_forgot_all_idle_groups(
    run: Command, topic: str
) -> None:
    dead = f"{topic}.dlq"
    assert run("dlq", "redrive", dead, "--json").json()["sent"] == 3
    for group in run("group", "list", "--json").json():
        if dead in group["name"]:
            assert run("group", "delete", group["name"]).status == 0
    again = run("dlq", "redrive", dead, "--json").json()
    if again["sent"]:
        raise DataError(f"{again['sent']} letters went back twice")
    assert again["sent_before"] == 3
    assert all(one["sent_back"] for one in run("dlq", "list", dead, "--json").json())


def test_ledger_is_that_of_the_pipeline(broker: Broker, run: Command, topic: str) -> None:
    """`penstock pipeline dlq` writes the same entries in transactions; see also tests/spark/test_dlq.py."""
    dead, ledger = f"{topic}.dlq", broker.create_topic(settings={"cleanup.policy": "compact"})
    words = ("dlq", "redrive", dead, "--ledger", ledger)
    with Producer(broker.bootstrap, transactional_id=f"pipeline-{topic}") as producer:
        with producer.transaction():
            producer.send(ledger, b"{}", f"{topic}/0/0/{topic}")
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send(ledger, b"{}", f"{topic}/0/1/{topic}").result(PATIENCE_S)
            listed = run("dlq", "list", dead, "--ledger", ledger, "--json").json()
            assert [one["sent_back"] for one in listed] == [True, False, False]
            raise ZeroDivisionError
    done = run(*words, "-n", 1, "--json").json()
    assert (done["sent"], done["sent_before"]) == (1, 1)
    done = run(*words, "--json").json()
    assert (done["sent"], done["sent_before"]) == (1, 2)
    assert sorted(_keys(broker, ledger)) == [f"{topic}/0/{n}/{topic}" for n in range(3)]
    other = broker.create_topic()
    assert run(*words, "--to", other, "--json").json()["sent"] == 3
    assert run(*words, "--to", other, "--json").json()["sent"] == 0
    assert run(*words, "--again", "--json").json()["sent"] == 3


def _keys(broker: Broker, ledger: str) -> list[str]:
    """Of the committed records."""
    with Consumer(
        broker.bootstrap, ledger, group_id=ledger, isolation_level="read_committed"
    ) as consumer:
        found: list[str] = []
        while (message := consumer.poll(PATIENCE_S if len(found) < 3 else 1)) is not None:
            found.append((message.raw_key or b"").decode())
        return found


def test_topic_that_forgets_cannot_be_the_ledger(broker: Broker, run: Command, topic: str) -> None:
    plain = broker.create_topic()
    done = run("dlq", "redrive", f"{topic}.dlq", "--ledger", plain)
    assert done.status == 2
    assert done.err == (
        f"penstock: topic {plain!r} cannot be the ledger: its cleanup.policy is 'delete', so it forgets which letters "
        "went back; set cleanup.policy=compact, or give another --ledger\n"
    )


def test_letters_whose_origin_is_not_known_are_told_apart(broker: Broker, run: Command) -> None:
    home = broker.create_topic()
    dead = broker.create_topic()
    with Producer(broker.bootstrap) as producer:
        for n in range(2):
            producer.send(dead, f"{n}", headers={"penstock-origin-topic": home}).result(PATIENCE_S)
    assert run("dlq", "redrive", dead, "--json").json()["sent"] == 2
    assert run("dlq", "redrive", dead, "--json").json()["sent"] == 0


def test_letters_can_go_elsewhere(broker: Broker, run: Command, topic: str) -> None:
    other = broker.create_topic()
    assert run("dlq", "redrive", f"{topic}.dlq", "--to", other, "--json").json()["sent"] == 3
    with Consumer(broker.bootstrap, other, group_id=other) as consumer:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value == b"order 0"


def test_a_topic_that_is_not_there_is_one_line(run: Command) -> None:
    done = run("dlq", "list", "nowhere.dlq")
    assert done.status == 1
    assert done.err == "penstock: topic 'nowhere.dlq' does not exist; see: penstock dlq list\n"


def test_a_letter_that_is_not_there_is_said_to_be_missing(run: Command, topic: str) -> None:
    dead = f"{topic}.dlq"
    missing = run("dlq", "show", dead, "--partition", 0, "--offset", 99)
    assert missing.status == 1
    assert missing.err == (
        f"penstock: {dead}-0@99: there is no letter; see: penstock dlq list {dead}\n"
    )
    nowhere = run("dlq", "show", dead, "--partition", 7)
    assert nowhere.status == 1
    assert nowhere.err == f"penstock: topic '{dead}' has no partition 7; it has 0 to 0\n"


def test_a_topic_without_letters_is_said_to_be_empty(broker: Broker, run: Command) -> None:
    empty = broker.create_topic()
    for command in ("list", "show"):
        done = run("dlq", command, empty)
        assert done.status == 0
        assert done.err == f"{empty} has no letters\n"
    assert run("dlq", "list", empty, "--json").json() == []


def test_what_is_no_letter_is_passed_over_and_said_so(broker: Broker, run: Command) -> None:
    plain, other = broker.create_topic(), broker.create_topic()
    with Producer(broker.bootstrap) as producer:
        producer.send(plain, b"x")
    dry = run("dlq", "redrive", plain, "--dry-run")
    assert dry.out == f"would send 0 letters of {plain}\n"
    assert dry.err == "passed over 1 message without an origin: give --to\n"
    assert run("dlq", "redrive", plain, "--to", other).out == (
        f"sent 1 letter of {plain}: 1 to {other}\n"
    )


def test_a_letter_in_parts_is_found_by_its_offset(broker: Broker, run: Command) -> None:
    dead = broker.create_topic()
    with Producer(broker.bootstrap, split_large=True) as producer:
        last = producer.send(dead, b"x" * 2_500_000, "k").result(PATIENCE_S)
        producer.send(dead, b"after", "k").result(PATIENCE_S)
    shown = run("dlq", "show", dead, "--partition", 0, "--offset", last.offset, "--json")
    (letter,) = shown.json_lines()
    assert len(letter["value"]) == 2_500_000


def test_a_letter_whose_topic_is_gone_stays_and_the_remedy_is_said() -> None:
    with Broker({"auto.create.topics.enable": "false"}, subprocess=True) as strict:
        dead = strict.create_topic("gone.dlq")
        with Producer(strict.bootstrap) as producer:
            producer.send(dead, b"x", headers={"penstock-origin-topic": "gone"}).result(PATIENCE_S)
        done = penstock_command("dlq", "redrive", dead, PENSTOCK_BOOTSTRAP=strict.bootstrap)
        assert done.status == 1
        assert done.err.endswith("; create it with: penstock topic create gone\n")
        (letter,) = penstock_command(
            "dlq", "list", dead, "--json", PENSTOCK_BOOTSTRAP=strict.bootstrap
        ).json()
        assert not letter["sent_back"]
