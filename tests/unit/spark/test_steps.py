"""A job can be killed at a step of its protocol, and at no other."""

import os
import signal

import pytest

from penstock.spark import steps


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, how: found.append((pid, how)))
    steps._times.clear()
    return found


def test_nothing_happens_unless_a_test_asks_for_it(kills: list[tuple[int, int]]) -> None:
    steps.reached("lake:staged")
    assert kills == []


def test_the_named_step_kills(
    kills: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(steps.VARIABLE, "lake:staged")
    steps.reached("lake:renamed")
    assert kills == []
    steps.reached("lake:staged")
    assert kills == [(os.getpid(), signal.SIGKILL)]


def test_a_number_says_which_time(
    kills: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(steps.VARIABLE, "lake:staged#3")
    for _ in range(4):
        steps.reached("lake:staged")
    assert len(kills) == 1
