"""A trace goes from `send` through the broker into the handler; without OpenTelemetry, headers pass untouched."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import AsyncConsumer, AsyncProducer, Consumer, Producer
from penstock.sdk.message import Message
from penstock.testing import Broker

pytestmark = pytest.mark.cluster
PATIENCE_S = 30.0


class Spans:
    """A tracer of the real SDK, and what it has exported."""

    def __init__(self) -> None:
        self._exported = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exported))
        self.tracer = provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exported.get_finished_spans() if span.name == name]

    def assert_continued(self, count: int = 1) -> None:
        """Every span "handle" is a child of the span "send", and nothing stays attached."""
        (sent,) = self.named("send")
        handled = self.named("handle")
        assert len(handled) == count
        for span in handled:
            assert span.parent is not None
            assert sent.context is not None
            assert span.parent.span_id == sent.context.span_id
            assert span.parent.trace_id == sent.context.trace_id
            assert span.parent.is_remote
        assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.fixture
def spans() -> Spans:
    return Spans()


def send_traced(broker: Broker, spans: Spans) -> str:
    topic = broker.create_topic()
    with Producer(broker.bootstrap) as producer, spans.tracer.start_as_current_span("send"):
        producer.send(topic, b"x", headers={"own": b"1"}).result(PATIENCE_S)
    return topic


def test_a_handler_of_run_is_a_child_of_the_sender(broker: Broker, spans: Spans) -> None:
    topic = send_traced(broker, spans)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        def handle(message: Message) -> None:
            assert message.header("own") == b"1"
            with spans.tracer.start_as_current_span("handle"):
                consumer.stop()

        consumer.run(handle, workers=2)
    spans.assert_continued()


def test_a_loop_continues_the_trace_by_hand(broker: Broker, spans: Spans) -> None:
    topic = send_traced(broker, spans)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        for message in consumer:
            with message.trace(), spans.tracer.start_as_current_span("handle"):
                consumer.stop()
    spans.assert_continued()


def test_coroutines_that_take_turns_keep_their_traces_apart(broker: Broker, spans: Spans) -> None:
    topic = broker.create_topic()

    async def both() -> None:
        async with AsyncProducer(broker.bootstrap) as producer:
            with spans.tracer.start_as_current_span("send"):
                for n in range(4):
                    await producer.send(topic, str(n))
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            done: list[Message] = []

            async def handle(message: Message) -> None:
                await asyncio.sleep(0)
                with spans.tracer.start_as_current_span("handle"):
                    await asyncio.sleep(0)
                done.append(message)
                if len(done) == 4:
                    consumer.stop()

            await consumer.run(handle, workers=4, order="none")

    asyncio.run(both())
    spans.assert_continued(count=4)


def test_a_message_that_is_put_aside_keeps_its_trace(broker: Broker, spans: Spans) -> None:
    topic = send_traced(broker, spans)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        def fail(_: Message) -> None:
            consumer.stop()
            raise ValueError("no")

        with spans.tracer.start_as_current_span("worker"):
            consumer.run(fail, workers=1, retries=0, dead_letter=f"{topic}.dlq")
    with Consumer(broker.bootstrap, f"{topic}.dlq", group_id=topic) as consumer:
        letter = consumer.poll(PATIENCE_S)
        assert letter is not None
        assert [name for name, _ in letter.headers].count("traceparent") == 1
        with letter.trace(), spans.tracer.start_as_current_span("handle"):
            pass
    spans.assert_continued()


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from penstock import Consumer, Producer
bootstrap, topic = sys.argv[1:]
headers = [("traceparent", b"00-1-2-01"), ("baggage", b"customer=17"), ("tracestate", None)]
with Producer(bootstrap) as producer:
    producer.send(topic, b"x", headers=headers).result(30)
with Consumer(bootstrap, topic, group_id=topic) as consumer:
    def handle(message):
        assert message.headers == headers, message.headers
        with message.trace():
            consumer.stop()
    print(consumer.run(handle, workers=1).handled, any(name.startswith("opentelemetry.") for name in sys.modules))
"""


def test_without_opentelemetry_headers_pass_untouched(broker: Broker, tmp_path: Path) -> None:
    program = tmp_path / "without.py"
    program.write_text(WITHOUT)
    ran = subprocess.run(
        [sys.executable, str(program), broker.bootstrap, broker.create_topic()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("1 False\n", 0), ran.stderr
