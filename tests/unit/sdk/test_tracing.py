"""Trace context in headers, with the real OpenTelemetry; without it, headers are left as they are."""

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.sdk import tracing
from penstock.sdk.sending import with_trace

SPANS = TracerProvider().get_tracer("tests")


@pytest.fixture(autouse=True)
def propagators() -> Iterator[None]:
    """OpenTelemetry's defaults, whatever the environment says."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(
        CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    )
    yield
    propagate.set_global_textmap(before)


def test_the_current_span_is_written_as_w3c_says() -> None:
    with SPANS.start_as_current_span("send") as span:
        headers = {name: value or b"" for name, value in tracing.OpenTelemetry().headers()}
    ids = span.get_span_context()
    assert list(headers) == ["traceparent"]
    assert headers["traceparent"].startswith(f"00-{ids.trace_id:032x}-{ids.span_id:016x}-".encode())


def test_a_span_of_the_consumer_is_a_child_of_the_producers() -> None:
    tracer = tracing.OpenTelemetry()
    with SPANS.start_as_current_span("send") as sent:
        headers = tracer.headers()
    with tracer.continued(dict(headers)), SPANS.start_as_current_span("handle") as handled:
        parent = handled.parent  # type: ignore[attr-defined]  # the SDK's span has it, the API's type does not
    assert parent.span_id == sent.get_span_context().span_id
    assert parent.is_remote
    assert handled.get_span_context().trace_id == sent.get_span_context().trace_id
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_baggage_goes_along() -> None:
    tracer = tracing.OpenTelemetry()
    token = context.attach(baggage.set_baggage("customer", "17"))
    headers = tracer.headers()
    context.detach(token)
    assert headers == [("baggage", b"customer=17")]
    with tracer.continued(dict(headers)):
        assert baggage.get_baggage("customer") == "17"
    assert baggage.get_baggage("customer") is None


def test_outside_of_a_span_nothing_is_written() -> None:
    tracer = tracing.OpenTelemetry()
    assert not tracer.is_active()
    assert tracer.headers() == []
    with SPANS.start_as_current_span("send"):
        assert tracer.is_active()


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"00-zz-zz-01", b"no trace"])
def test_what_is_no_trace_is_passed_over(value: bytes | None) -> None:
    with tracing.OpenTelemetry().continued({"traceparent": value, "other": b"\x00\xff"}):
        assert not trace.get_current_span().get_span_context().is_valid


def test_the_context_is_given_back_when_the_handler_fails() -> None:
    tracer = tracing.OpenTelemetry()
    with SPANS.start_as_current_span("send"):
        headers = tracer.headers()
    with pytest.raises(KeyError), tracer.continued(dict(headers)):
        raise KeyError
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_headers_of_the_application_win_over_the_trace() -> None:
    own = [("traceparent", b"mine"), ("a", b"b")]
    assert with_trace(own, [("traceparent", b"ours"), ("baggage", b"c=d")]) == [
        *own,
        ("baggage", b"c=d"),
    ]
    assert with_trace({"a": "b"}, [("traceparent", b"ours")]) == [
        ("a", "b"),
        ("traceparent", b"ours"),
    ]
    assert with_trace(None, []) is None


def test_without_opentelemetry_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracing.installed_tracer() is None
    with tracing.continued(None, {"traceparent": b"00-1-2-01"}):
        pass
