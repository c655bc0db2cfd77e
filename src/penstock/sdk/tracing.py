"""W3C trace context in message headers, when OpenTelemetry is installed; otherwise nothing, at no cost."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

Header = tuple[str, bytes | None]


class Tracer(Protocol):
    def is_active(self) -> bool:
        """Something is traced here and now. Asked for every message: cheap."""

    def headers(self) -> list[Header]:
        """What to add to a message so that its consumer continues this trace."""

    def continued(self, headers: Mapping[str, bytes | None]) -> AbstractContextManager[object]:
        """The producer's trace as the current one."""


class OpenTelemetry:
    """Reads and writes with the propagators that the application has set up."""

    def __init__(self) -> None:
        self._propagate: Any = import_module("opentelemetry.propagate")
        self._context: Any = import_module("opentelemetry.context")

    def is_active(self) -> bool:
        return bool(self._context.get_current())

    def headers(self) -> list[Header]:
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        return [(name, value.encode()) for name, value in carrier.items()]

    @contextmanager
    def continued(self, headers: Mapping[str, bytes | None]) -> Iterator[None]:
        carrier = {name: value.decode(errors="replace") for name, value in headers.items() if value}
        token = self._context.attach(self._propagate.extract(carrier))
        try:
            yield
        finally:
            self._context.detach(token)


def installed_tracer() -> Tracer | None:
    """None where OpenTelemetry is not installed."""
    try:
        found = find_spec("opentelemetry.propagate") is not None
    except (ImportError, ValueError):
        found = False
    return OpenTelemetry() if found else None


def continued(
    tracer: Tracer | None, headers: Mapping[str, bytes | None]
) -> AbstractContextManager[object]:
    return nullcontext() if tracer is None or not headers else tracer.continued(headers)
