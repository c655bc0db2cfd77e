"""The examples of the client's docstrings and of docs/cookbook.md, against a broker."""

import doctest
import re
import time
from pathlib import Path
from typing import Any

import pytest

import penstock.sdk.aio
import penstock.sdk.consumer
import penstock.sdk.producer
from penstock import Producer
from penstock.sdk.message import Message
from penstock.testing import Broker

pytestmark = pytest.mark.cluster
COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook.md"
BLOCKS = re.findall(
    r"^## (.+?)$|^```python\n(.*?)^```$", COOKBOOK.read_text(), re.MULTILINE | re.DOTALL
)
IDLE_S = 2.5


def examples() -> list[Any]:
    heading = "Cookbook"
    found: list[Any] = []
    for title, code in BLOCKS:
        heading = title or heading
        if code:
            found.append(pytest.param(code, id=f"{heading}-{len(found)}"))
    return found


class Ending(penstock.sdk.consumer.Consumer):
    """Stops when nothing has come for a while: examples would go on for ever."""

    _heard_s: float | None = None

    def poll(self, timeout: float | None = None) -> Message | None:
        message = super().poll(0.1 if timeout is None else timeout)
        now_s = time.monotonic()
        if message is not None or self._heard_s is None:
            self._heard_s = now_s
        if now_s - self._heard_s > IDLE_S:
            self.stop()
        return (
            message
            if message is not None or self.is_stopped or timeout is not None
            else self.poll()
        )


@pytest.mark.parametrize("code", examples())
def test_an_example_of_the_cookbook_runs(
    broker: Broker, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.sdk.consumer, "Consumer", Ending)
    monkeypatch.setattr(penstock.sdk.aio, "Consumer", Ending)
    with Producer(broker.bootstrap) as producer:
        producer.send("settings", b"{}").result()
        for value in ("{}", "poison") if "poison" in code else ("{}",):
            producer.send("orders", value).result()
    exec(compile(code, "cookbook.md", "exec"), {"bootstrap": broker.bootstrap})


@pytest.mark.parametrize("module", [penstock.sdk.producer, penstock.sdk.consumer, penstock.sdk.aio])
def test_the_examples_of_a_module_hold(module: Any) -> None:
    with Broker() as broker:
        with Producer(broker.bootstrap) as producer:
            producer.send("greetings", "hello").result()
        names = {"bootstrap": broker.bootstrap}
        results = doctest.testmod(module, extraglobs=names)
    assert results.failed == 0
    assert results.attempted > 0
