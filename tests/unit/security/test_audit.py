"""Audit events: their form, their chain, and what a flood leaves."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import audit_buffer as buffer_module
from penstock.security.audit import Chain, Event, EventClass, find_break, to_ocsf
from penstock.security.audit_buffer import AuditBuffer
from penstock.security.resources import Principal

ALICE = Principal("User", "alice")
DENIED = Event(
    1000,
    EventClass.API_ACTIVITY,
    "delete",
    is_allowed=False,
    principal=ALICE,
    host="10.0.0.1",
    listener="EXTERNAL",
    api="DELETE_TOPICS",
    operation="DELETE",
    resource_type="TOPIC",
    resource_name="orders",
    reason="no binding allows it",
)


def test_the_form_of_a_denial() -> None:
    assert to_ocsf(DENIED, broker_id=3, sequence=7, version="1.0") == {
        "class_uid": 6003,
        "category_uid": 6,
        "activity_id": 4,
        "activity_name": "delete",
        "type_uid": 600304,
        "time": 1000,
        "severity_id": 3,
        "status_id": 2,
        "status_detail": "no binding allows it",
        "count": 1,
        "metadata": {
            "version": "1.5.0",
            "product": {"name": "penstock", "vendor_name": "penstock", "version": "1.0"},
            "sequence": 7,
            "uid": "3-7",
        },
        "device": {"uid": "3", "type_id": 1},
        "actor": {"user": {"name": "alice", "type": "User"}},
        "api": {"operation": "DELETE", "service": {"name": "DELETE_TOPICS"}},
        "src_endpoint": {"ip": "10.0.0.1"},
        "resources": [{"type": "TOPIC", "name": "orders"}],
        "unmapped": {"listener": "EXTERNAL"},
    }


def test_the_form_of_a_login_and_of_an_unlisted_activity() -> None:
    login = Event(5, EventClass.AUTHENTICATION, "login", is_allowed=True, principal=ALICE)
    found = to_ocsf(login, 1, 1, "1.0")
    assert (found["type_uid"], found["status_id"], found["user"]["name"]) == (300201, 1, "alice")
    assert not {"actor", "api", "resources", "src_endpoint", "status_detail", "unmapped"} & set(
        found
    )
    other = to_ocsf(login._replace(activity="reauthentication"), 1, 1, "1.0")
    assert (other["activity_id"], other["activity_name"]) == (99, "reauthentication")


@given(st.text(max_size=400))
def test_whatever_a_client_sends_is_one_line_of_limited_length(text: str) -> None:
    event = DENIED._replace(
        principal=Principal("User", text), resource_name=text, details=(("client_id", text),)
    )
    line = Chain().encode(to_ocsf(event, 1, 1, "1.0"))
    assert line.isascii()
    assert not set(line) & set(range(0x20))
    assert len(line) < 12 * 3 * 256 + 2000
    assert len(json.loads(line)["resources"][0]["name"]) <= 256


# The chain ---------------------------------------------------------------------------------------


def lines(count: int, chain: Chain | None = None) -> list[bytes]:
    chain = chain or Chain()
    return [chain.encode(to_ocsf(DENIED, 1, sequence, "1.0")) for sequence in range(count)]


def test_a_chain_verifies_and_continues_after_a_restart() -> None:
    chain = Chain()
    first = lines(5, chain)
    second = lines(5, Chain(chain.last_hash))
    assert find_break([*first, *second]) is None
    assert find_break(second) == 0
    assert find_break(second, chain.last_hash) is None
    assert find_break([]) is None


@given(st.integers(0, 9), st.randoms(use_true_random=False))
def test_every_change_breaks_the_chain_at_its_place(index: int, random: Random) -> None:
    good = lines(10)
    assert find_break(good[:index] + good[index + 1 :]) == (index if index < 9 else None)
    assert find_break([*good[:index], good[index], *good[index:]]) == index + 1
    event = json.loads(good[index])
    name = random.choice([name for name in event if name != "penstock.chain"])
    event[name] = "edited"
    edited = json.dumps(event).encode()
    assert find_break([*good[:index], edited, *good[index + 1 :]]) == index


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"{}", b'{"penstock.chain":7}', b'{"penstock.chain":{}}', b"\xff"]
)
def test_a_damaged_line_breaks_the_chain(line: bytes) -> None:
    assert find_break([*lines(2), line]) == 2


# The buffer --------------------------------------------------------------------------------------


def test_a_flood_of_denials_is_ten_events_and_one_that_counts_the_rest() -> None:
    buffer = AuditBuffer()
    for number in range(1000):
        buffer.note(DENIED._replace(time_ms=1000 + number))
    assert len(buffer.drain(2000, limit=100)) == 10
    assert buffer.drain(10_999, limit=100) == []
    (summary,) = buffer.drain(11_000, limit=100)
    assert summary == DENIED._replace(time_ms=1999, times=990)
    buffer.note(DENIED._replace(time_ms=20_000))
    assert len(buffer.drain(20_000, limit=100)) == 1, "a new window"


def test_a_new_window_tells_of_the_last_one_first() -> None:
    buffer = AuditBuffer()
    for _ in range(12):
        buffer.note(DENIED)
    buffer.note(DENIED._replace(time_ms=50_000))
    assert [event.times for event in buffer.drain(50_000, limit=100)] == [1] * 10 + [2, 1]


def test_other_kinds_and_allowed_events_are_not_held_back() -> None:
    buffer = AuditBuffer()
    for number in range(20):
        buffer.note(DENIED._replace(resource_name=f"t{number}"))
        buffer.note(DENIED._replace(is_allowed=True))
    assert len(buffer) == 40


def test_failed_logins_of_one_host_are_one_kind() -> None:
    buffer = AuditBuffer()
    failed = Event(0, EventClass.AUTHENTICATION, "login", is_allowed=False, host="10.0.0.1")
    for _ in range(20):
        buffer.note(failed)
        buffer.note(failed._replace(host="10.0.0.2"))
    assert len(buffer) == 20


def test_a_full_buffer_drops_counts_and_tells() -> None:
    buffer = AuditBuffer(max_events=5)
    for number in range(12):
        buffer.note(DENIED._replace(is_allowed=True, time_ms=number))
    drained = buffer.drain(50, limit=3)
    assert [event.activity for event in drained] == ["events_dropped", "delete", "delete"]
    assert drained[0].times == buffer.dropped_total == 7
    assert [event.time_ms for event in buffer.drain(50, limit=10)] == [2, 3, 4]


def test_the_kinds_that_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "MAX_REPEATED", 3)
    buffer = AuditBuffer()
    for number in range(10):
        for _ in range(11):
            buffer.note(DENIED._replace(resource_name=f"t{number}"))
    assert len(buffer._windows) == 3
    drained = buffer.drain(1000 + buffer_module.WINDOW_MS, limit=1000)
    assert sum(event.times for event in drained) == 110, "every denial is told"
