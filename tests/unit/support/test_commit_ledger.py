"""The ledger of commits finds a coordinator that forgot one."""

import pytest

from tests.support.commit_ledger import CommitLedger
from tests.support.failures import DataError

PLACE = ("t", 0)


def ledger_with(offset: int) -> CommitLedger:
    ledger = CommitLedger()
    ledger.note({PLACE: offset})
    return ledger


def test_offset_before_an_acknowledged_commit_fails() -> None:
    expected = ledger_with(7).before([PLACE])
    with pytest.raises(DataError, match=r"t-0: offset 7 was committed and acknowledged; .* 6"):
        CommitLedger.check(expected, {PLACE: 6})


def test_missing_offset_fails() -> None:
    with pytest.raises(DataError, match="returns -1"):
        CommitLedger.check(ledger_with(7).before([PLACE]), {})


def test_later_commit_of_another_member_passes() -> None:
    ledger = ledger_with(7)
    expected = ledger.before([PLACE])
    ledger.note({PLACE: 9})
    CommitLedger.check(expected, {PLACE: 8})


def test_partition_without_acknowledged_commit_passes() -> None:
    CommitLedger.check(ledger_with(7).before([("t", 1)]), {})
