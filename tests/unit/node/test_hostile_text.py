"""Every regular expression that a broker applies to text from outside takes linear time."""

from collections.abc import Callable
from contextlib import suppress
from time import thread_time

import pytest

from penstock.kafka.handlers import api_versions
from penstock.metadata.etcd import settings as etcd_settings
from penstock.metadata.rules import topic_names
from penstock.model.configs import broker_setting, topic_setting
from penstock.model.errors import BrokerError
from penstock.node import listeners, logs
from penstock.telemetry import registry

LENGTH = 32_767  # the longest string of most requests
READERS: dict[str, Callable[[str], object]] = {
    "software name": api_versions._SOFTWARE.fullmatch,
    "topic name": topic_names._LEGAL.fullmatch,
    "checked topic name": topic_names.check_topic_name,
    "throttled replicas": topic_setting("leader.replication.throttled.replicas").canonical,
    "cleanup policy": topic_setting("cleanup.policy").canonical,
    "number": topic_setting("retention.ms").canonical,
    "fraction": topic_setting("min.cleanable.dirty.ratio").canonical,
    "size": topic_setting("segment.bytes").canonical,
    "listener": listeners.parse_listeners,
    "address": listeners.parse_address,
    "protocols": broker_setting("listeners").canonical,
    "logged value": logs._quoted,
    "log template": logs._TEMPLATE.fullmatch,
    "metric name": registry._METRIC_NAME.fullmatch,
    "label name": registry._LABEL_NAME.fullmatch,
    "etcd": etcd_settings.parse_etcd_url,
}
UNITS = [
    "a",
    "1",
    " ",
    ".",
    "-",
    ":",
    ",",
    "=",
    "/",
    "[",
    "_",
    "a-",
    "1:1,",
    "a=",
    "://",
    "::",
    "\n",
]


def long_texts() -> list[str]:
    texts = []
    for unit in UNITS:
        body = unit * (LENGTH // len(unit))
        texts += [body, f"{body}!", f"a{body}\n", f"{body}:1", f"etcd://{body}/"]
    return texts


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_text_is_read_or_rejected_in_linear_time(read: Callable[[str], object]) -> None:
    def taken_s(text: str) -> float:
        start_s = thread_time()
        with suppress(BrokerError):
            read(text)
        return thread_time() - start_s

    for text in long_texts():
        assert any(taken_s(text) < 0.1 for _ in range(3)), text[:20]
