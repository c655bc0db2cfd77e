"""AMQP reply codes, and the exception that carries one to the peer.

A malformed frame never raises anything but `AmqpError`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MAX_TEXT_BYTES: Final = 255  # a reply text is a short string


class ReplyCode(IntEnum):
    """The codes of connection.close, channel.close and basic.return."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def closes_connection(self) -> bool:
        """True for a hard error, which ends the connection. A soft error ends one channel."""
        return self in _HARD_ERRORS


_HARD_ERRORS: Final = frozenset(
    {
        ReplyCode.CONNECTION_FORCED,
        ReplyCode.INVALID_PATH,
        ReplyCode.FRAME_ERROR,
        ReplyCode.SYNTAX_ERROR,
        ReplyCode.COMMAND_INVALID,
        ReplyCode.CHANNEL_ERROR,
        ReplyCode.UNEXPECTED_FRAME,
        ReplyCode.RESOURCE_ERROR,
        ReplyCode.NOT_ALLOWED,
        ReplyCode.NOT_IMPLEMENTED,
        ReplyCode.INTERNAL_ERROR,
    }
)


class AmqpError(Exception):
    """The peer violated the protocol, or the broker cannot do what the peer requested.

    `text` states the fact in RabbitMQ's words, because clients match parts of it.
    """

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text

    @property
    def reply_text(self) -> str:
        """Return the code's name and the text, cut to what a short string holds."""
        encoded = f"{self.code.name} - {self.text}".encode()
        return encoded[:MAX_TEXT_BYTES].decode(errors="ignore")


def frame_error(text: str) -> AmqpError:
    return AmqpError(ReplyCode.FRAME_ERROR, text)


def syntax_error(text: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, text)


def octets(payload: bytes) -> str:
    """Describe a payload as RabbitMQ does: `all octets = <<1,2>>`, or its first 16."""
    which = "all" if len(payload) <= 16 else "first 16"
    return f"{which} octets = <<{','.join(map(str, payload[:16]))}>>"
