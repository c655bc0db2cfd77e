"""A message is put off to the retry topics of the topic that is read, whatever its headers say."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sdk import dead_letters
from penstock.sdk.message import Message
from penstock.sdk.outlet import Outlet
from penstock.sdk.retrying import RetryTopics


class Raw:
    """A message with the headers of a dead letter."""

    def __init__(self, topic: str) -> None:
        self.topic = lambda: topic
        self.partition = lambda: 0
        self.offset = lambda: 0
        self.timestamp = lambda: (1, 0)
        self.key = self.value = lambda: None
        self.headers = lambda: [(dead_letters.ORIGIN_TOPIC, b"orders")]


@pytest.mark.parametrize(
    ("topic", "target"),
    [("orders.dlq", "orders.dlq.retry.1"), ("orders.dlq.retry.1", "orders.dlq.retry.1")],
)
def test_a_dead_letter_goes_to_a_retry_topic_that_is_read(topic: str, target: str) -> None:
    consumer: Any = SimpleNamespace(topics=["orders.dlq"], group_id="g")
    outlet = Outlet(consumer, None, RetryTopics((1,)))
    sent: list[str] = []
    outlet._send = lambda topic, *_: sent.append(topic)  # type: ignore[method-assign]
    outlet.put_off(Message(Raw(topic), (None, None)), ValueError(), 1, step=0, delay_s=1)
    assert sent == [target]
