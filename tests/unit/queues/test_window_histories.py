"""A window agrees with its plain form after any sequence of operations."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.queues.window_machine import LargePageMachine, WindowMachine


def test_a_window_agrees_with_its_plain_form() -> None:
    run_state_machine_as_test(
        WindowMachine, settings=settings(max_examples=60, stateful_step_count=50, deadline=None)
    )


def test_a_window_with_pages_of_full_size_agrees_with_its_plain_form() -> None:
    run_state_machine_as_test(
        LargePageMachine, settings=settings(max_examples=15, stateful_step_count=50, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.parametrize("machine", [WindowMachine, LargePageMachine])
def test_a_window_agrees_with_its_plain_form_for_longer(machine: type[WindowMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=500, stateful_step_count=60, deadline=None)
    )
