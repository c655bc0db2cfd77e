"""A task of the sink says at once that it cannot reach a broker."""

import socket
import time
from collections.abc import Iterator

import pytest

from penstock.spark.sink_options import SinkError, plan_sink

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
sink = pytest.importorskip("penstock.spark.sink")

REACH_MS = 1_000
PATIENCE_S = 20.0  # far from the two minutes for which librdkafka would try to deliver


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def send(bootstrap: str, *values: str) -> int:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": "t",
        "kafka.max.block.ms": str(REACH_MS),
    }
    batch = pa.record_batch({"value": pa.array(values, pa.string())})
    return int(sink.send(plan_sink({"value": "string"}, options), [batch]).rows)


def test_without_a_broker_a_task_says_so_and_does_not_wait_for_the_delivery(nobody: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(SinkError) as refused:
        send(nobody, "v")
    assert time.monotonic() - begun_s < PATIENCE_S
    assert str(refused.value) == (
        f"cannot reach {nobody}: connection refused; "
        "is a broker running there? start one with: penstock serve"
    )


def test_a_peer_that_does_not_answer_is_not_waited_for_either(silent: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(SinkError, match=f"^cannot reach {silent}: "):
        send(silent, "v")
    assert time.monotonic() - begun_s < PATIENCE_S


def test_a_task_without_rows_needs_no_broker(nobody: str) -> None:
    assert send(nobody) == 0
