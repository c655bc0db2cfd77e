"""Expects AMQP errors with their exact code and text."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import pytest

from penstock.wire.amqp.errors import AmqpError, ReplyCode


def refusal(code: ReplyCode, text: str) -> AbstractContextManager[object]:
    return pytest.raises(AmqpError, match=f"^{re.escape(f'{code.name} - {text}')}$")
