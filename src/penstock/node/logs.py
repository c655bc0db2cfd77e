"""Logs on stderr, one event a line: `event key=value`, or the same as JSON.

Code logs with plain `logging`, and the template is the structure: `logger.info("listener-open name=%s port=%d", …)`.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, TextIO, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]
Fields: TypeAlias = list[tuple[str, object]]

_TEMPLATE: Final = re.compile(r"[a-z][a-z0-9-]*(?: [a-z][a-z0-9_-]*=%[-+.0-9]*[a-z])*")
_PLAIN: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
_OWN: Final = "penstock"


def set_up_logging(
    log_format: LogFormat = "text", level: int = logging.INFO, stream: TextIO | None = None
) -> None:
    """Sends every log of this process to stderr. Libraries are heard from WARNING on."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger(_OWN).setLevel(level)


class TextFormatter(logging.Formatter):
    """`2026-11-15T08:00:00.000Z INFO event key=value`; a trace follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = structure(record)
        pairs = "".join(f" {key}={_quoted(str(value))}" for key, value in fields)
        line = f"{_timestamp(record)} {record.levelname} {event}{pairs}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {part}" for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a trace is one of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = structure(record)
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": event,
            "logger": record.name,
            **dict(fields),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def structure(record: logging.LogRecord) -> tuple[str, Fields]:
    """The event and its fields, as the template names them. Other people's logs are one `message`."""
    ours = record.name.partition(".")[0] == _OWN and isinstance(record.msg, str)
    template = _parse(record.msg) if ours else None
    arguments = record.args or ()
    if template is None or isinstance(arguments, Mapping) or len(template) - 1 != len(arguments):
        return "log", [("logger", record.name), ("message", record.getMessage())]
    event, *pairs = template
    fields = (pair.split("=", 1) for pair in pairs)
    return event, [
        (key, value if isinstance(value, int | float | None) else spec % (value,))
        for (key, spec), value in zip(fields, arguments, strict=True)
    ]


@lru_cache(maxsize=512)
def _parse(template: str) -> tuple[str, ...] | None:
    return tuple(template.split(" ")) if _TEMPLATE.fullmatch(template) else None


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
