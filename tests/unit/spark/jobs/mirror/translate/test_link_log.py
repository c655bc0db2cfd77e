"""A link waits for a topic that was just created: some brokers learn of it late."""

import asyncio
from typing import Any

import pytest

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror.translate import link_log


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[ErrorCode]:
    """What brokers say of the topic, one after the other; then they know it."""
    codes: list[ErrorCode] = []

    async def ensure_topic(_: Any, name: str, *, create: bool) -> str:
        assert not create
        if codes:
            raise ClientError(f"{name}: no", codes.pop(0))
        return name

    monkeypatch.setattr(admin, "ensure_topic", ensure_topic)
    monkeypatch.setattr(link_log, "_PAUSE_S", 0)
    return codes


def known_topic() -> Any:
    pool: Any = None
    return asyncio.run(link_log.known_topic(pool, "t"))


def test_a_topic_that_is_not_known_yet_is_asked_for_again(answers: list[ErrorCode]) -> None:
    answers += [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert known_topic() == "t"


def test_one_that_is_never_known_and_one_that_is_refused_are_errors(
    answers: list[ErrorCode],
) -> None:
    answers += [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(ClientError):
        known_topic()
    answers += [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
    with pytest.raises(JobError, match="still do not know it"):
        known_topic()
