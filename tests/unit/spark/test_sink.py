"""A task of the sink says at once that it cannot reach a broker."""

import socket
from collections.abc import Iterator

import pytest

from penstock.spark.sink_options import SinkError, plan_sink

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
sink = pytest.importorskip("penstock.spark.sink")

REACH_MS = 1_000
DELIVERY_MS = 3_600_000  # who waits for that does not end


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


def send(
    bootstrap: str, *values: str, reach_ms: int = REACH_MS, delivery_ms: int = DELIVERY_MS
) -> int:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": "t",
        "kafka.delivery.timeout.ms": str(delivery_ms),
        "kafka.max.block.ms": str(reach_ms),
    }
    batch = pa.record_batch({"value": pa.array(values, pa.string())})
    return int(sink.send(plan_sink({"value": "string"}, options), [batch]).rows)


def test_without_a_broker_a_task_says_so_and_does_not_wait_for_the_delivery(nobody: str) -> None:
    with pytest.raises(SinkError) as refused:
        send(nobody, "v")
    assert str(refused.value) == (
        f"cannot reach {nobody}: connection refused; "
        "is a broker running there? start one with: penstock serve"
    )


def test_a_peer_that_does_not_answer_is_not_waited_for_either(silent: str) -> None:
    with pytest.raises(SinkError, match=f"^cannot reach {silent}: "):
        send(silent, "v")


def test_a_task_without_rows_needs_no_broker(nobody: str) -> None:
    assert send(nobody) == 0


def test_a_task_that_is_told_not_to_wait_asks_nobody(nobody: str) -> None:
    """Rows are librdkafka's then, until their own time is up."""
    with pytest.raises(SinkError, match="timed out"):
        send(nobody, "v", reach_ms=0, delivery_ms=200)
