"""What brokers refuse of a transaction is told as the option that asked for it."""

from typing import Any

import pytest

from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.spark import transactional
from penstock.spark.errors import BadOption


def test_a_timeout_that_brokers_do_not_allow_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = [ErrorCode.INVALID_TRANSACTION_TIMEOUT, ErrorCode.BROKER_NOT_AVAILABLE]

    def ask(*_: Any) -> None:
        raise ClientError("no", codes.pop(0))

    monkeypatch.setattr(transactional, "ask", ask)
    job = transactional.Transactions("h:1", transactional_id="t", group="g", timeout_ms=7_200_000)
    with pytest.raises(
        BadOption, match=r"7200000 ms: .* raise their transaction\.max\.timeout\.ms"
    ):
        job.begin()
    with pytest.raises(ClientError, match="no"):
        job.begin()
