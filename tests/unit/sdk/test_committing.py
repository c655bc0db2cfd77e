"""Commits that are refused: asked for again where the member is still in its group, and only there."""

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from penstock.sdk.committing import Commits
from penstock.sdk.errors import CommitFailed, UnknownTopic
from penstock.sdk.metrics import ConsumerMetrics, Statistics
from penstock.sdk.shelf import Shelf

PLACE = ("t", 0)


class Client:
    """Refuses with these codes, one after another, and then takes what it is given."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.taken: list[int] = []

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:  # noqa: ARG002 - librdkafka's names
        if self.codes:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(self.codes.pop(0)))
        self.taken += [one.offset for one in offsets]


def commits_of(client: Client) -> Commits:
    shelf = Shelf((None, None), lambda *_: None)
    commits = Commits("g", ConsumerMetrics("c", Statistics(), shelf, dict))
    commits.client = client
    return commits


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only by waiting."""
    waited: list[float] = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: 1000.0 + sum(waited))
    monkeypatch.setattr("penstock.sdk.committing.time", clock)
    return waited


def test_a_group_that_has_moved_on_is_asked_again_until_the_member_knows(
    pauses: list[float],
) -> None:
    client = Client(*[ErrorCode.STALE_MEMBER_EPOCH] * 3)
    commits = commits_of(client)
    commits.commit({PLACE: 7}, asynchronous=False)
    assert (client.taken, len(pauses)) == ([7], 3)


def test_it_is_not_asked_for_ever(pauses: list[float]) -> None:
    client = Client(*[ErrorCode.STALE_MEMBER_EPOCH] * 1000)
    commits = commits_of(client)
    with pytest.raises(CommitFailed):
        commits.commit({PLACE: 7}, asynchronous=False)
    assert 5 <= sum(pauses) < 6
    client.codes.clear()
    commits.commit({PLACE: 7}, asynchronous=False)
    assert client.taken == [7], "what was refused may be asked for later"


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_member_that_is_out_does_not_ask_again(pauses: list[float], code: ErrorCode) -> None:
    client = Client(code)
    with pytest.raises(CommitFailed):
        commits_of(client).commit({PLACE: 7}, asynchronous=False)
    assert (client.taken, pauses) == ([], [])


def test_who_does_not_wait_for_an_answer_does_not_ask_again(pauses: list[float]) -> None:
    client = Client(ErrorCode.STALE_MEMBER_EPOCH)
    with pytest.raises(CommitFailed):
        commits_of(client).commit({PLACE: 7}, asynchronous=True)
    assert pauses == []


def test_a_partition_that_fails_alone_is_refused_and_may_be_asked_for_again() -> None:
    client = Client()
    error = confluent_kafka.KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answers = [[SimpleNamespace(topic="t", partition=0, error=error)], []]
    client.commit = lambda offsets, asynchronous: answers.pop(0)  # type: ignore[method-assign, assignment]  # noqa: ARG005
    commits = commits_of(client)
    with pytest.raises(UnknownTopic, match="commit in group 'g': t-0"):
        commits.commit({PLACE: 7}, asynchronous=False)
    commits.commit({PLACE: 7}, asynchronous=False)
    assert answers == []


def test_a_report_may_refuse_one_partition() -> None:
    client = Client()
    commits = commits_of(client)
    commits.commit({PLACE: 7, ("t", 1): 8}, asynchronous=True)
    error = confluent_kafka.KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    fine = SimpleNamespace(topic="t", partition=1, error=None)
    commits.on_commit(None, [SimpleNamespace(topic="t", partition=0, error=error), fine])
    commits.commit({PLACE: 7, ("t", 1): 8}, asynchronous=True)
    assert client.taken == [7, 8, 7]
