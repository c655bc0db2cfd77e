"""Messages put aside: with where they came from, what went wrong and when, and every header they had. Pure.

The coordinates are those of the first failure, also after retry topics, so a letter is known by them.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

Header = tuple[str, bytes | None]

ORIGIN_TOPIC: Final = "penstock-origin-topic"
ORIGIN_PARTITION: Final = "penstock-origin-partition"
ORIGIN_OFFSET: Final = "penstock-origin-offset"
ORIGIN_TIMESTAMP: Final = "penstock-origin-timestamp"
ERROR: Final = "penstock-error"
ERROR_TYPE: Final = "penstock-error-type"
ATTEMPTS: Final = "penstock-attempts"
GROUP: Final = "penstock-group"
FAILED_AT: Final = "penstock-failed-at"
RETRY_AT: Final = "penstock-retry-at"
RETRY_STEP: Final = "penstock-retry-step"
REDRIVEN: Final = "penstock-redriven"
_OURS: Final = frozenset(
    {
        ORIGIN_TOPIC,
        ORIGIN_PARTITION,
        ORIGIN_OFFSET,
        ORIGIN_TIMESTAMP,
        ERROR,
        ERROR_TYPE,
        ATTEMPTS,
        GROUP,
        FAILED_AT,
        RETRY_AT,
        RETRY_STEP,
    }
)
_ERROR_LIMIT: Final = 2_000  # characters of an error's text


class Failed(Protocol):
    """What is needed of a message."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def headers(self) -> Sequence[Header]: ...


class Letter(NamedTuple):
    """What the headers of a dead letter say."""

    topic: str | None
    partition: int
    offset: int
    timestamp_ms: int
    error: str
    error_type: str
    attempts: int
    group: str
    failed_at_ms: int
    redriven: int


class Failure(NamedTuple):
    error: BaseException
    attempts: int
    group: str
    now_ms: int


def put_aside(message: Failed, failure: Failure) -> list[Header]:
    """The headers of a dead letter: the message's own, then ours."""
    before = read(message.headers)
    text = (str(failure.error) or type(failure.error).__name__)[:_ERROR_LIMIT]
    kept = before if before.topic is not None else None
    return [
        *own_headers(message.headers),
        (ORIGIN_TOPIC, (kept.topic or "" if kept else message.topic).encode()),
        (ORIGIN_PARTITION, _digits(kept.partition if kept else message.partition)),
        (ORIGIN_OFFSET, _digits(kept.offset if kept else message.offset)),
        (ORIGIN_TIMESTAMP, _digits(kept.timestamp_ms if kept else message.timestamp_ms)),
        (ERROR, text.encode(errors="replace")),
        (ERROR_TYPE, type(failure.error).__qualname__.encode()),
        (ATTEMPTS, _digits(before.attempts + failure.attempts)),
        (GROUP, failure.group.encode()),
        (FAILED_AT, _digits(failure.now_ms)),
    ]


def put_off(message: Failed, failure: Failure, *, step: int, delay_s: float) -> list[Header]:
    """The headers of a message on its way through retry topic number `step`."""
    return [
        *put_aside(message, failure),
        (RETRY_AT, _digits(failure.now_ms + int(delay_s * 1000))),
        (RETRY_STEP, _digits(step + 1)),
    ]


def read(headers: Iterable[Header]) -> Letter:
    """What is known of a dead letter; `topic` is None for a message that is none."""
    found = dict(headers)
    topic = found.get(ORIGIN_TOPIC)
    return Letter(
        topic=None if topic is None else topic.decode(errors="replace"),
        partition=_number(found.get(ORIGIN_PARTITION)),
        offset=_number(found.get(ORIGIN_OFFSET)),
        timestamp_ms=_number(found.get(ORIGIN_TIMESTAMP)),
        error=_text(found.get(ERROR)),
        error_type=_text(found.get(ERROR_TYPE)),
        attempts=max(0, _number(found.get(ATTEMPTS), 0)),
        group=_text(found.get(GROUP)),
        failed_at_ms=_number(found.get(FAILED_AT)),
        redriven=max(0, _number(found.get(REDRIVEN), 0)),
    )


def retry_at_ms(headers: Iterable[Header]) -> int | None:
    """When a message of a retry topic is due; None for any other."""
    value = dict(headers).get(RETRY_AT)
    return None if value is None else _number(value, 0)


def retry_step(headers: Iterable[Header]) -> int:
    """How many retry topics it has gone through."""
    return max(0, _number(dict(headers).get(RETRY_STEP), 0))


def own_headers(headers: Iterable[Header]) -> list[Header]:
    """What the application wrote, without what was added since."""
    return [header for header in headers if header[0] not in _OURS]


def redriven(headers: Sequence[Header]) -> list[Header]:
    """The headers of a letter that goes back to its topic: as it was, with the count of its returns.

    >>> redriven([("own", b"1"), ("penstock-error", b"no"), ("penstock-redriven", b"1")])
    [('own', b'1'), ('penstock-redriven', b'2')]
    """
    count = read(headers).redriven + 1
    kept = [header for header in own_headers(headers) if header[0] != REDRIVEN]
    return [*kept, (REDRIVEN, _digits(count))]


def _digits(value: int) -> bytes:
    return str(value).encode()


def _number(value: bytes | None, default: int = -1) -> int:
    try:
        return default if value is None else int(value)
    except ValueError:
        return default


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
