"""The examples in docstrings are true; those that need a broker are run in conformance/test_sdk_examples.py."""

import doctest
import subprocess
import sys
from importlib import import_module

import pytest

PURE = [
    "checks",
    "errors",
    "settings",
    "serializers",
    "partitioners",
    "rate_limit",
    "large",
    "metrics",
    "offsets",
    "retrying",
    "dead_letters",
    "positions",
    "database",
]


@pytest.mark.parametrize("name", PURE)
def test_the_examples_of_a_module_hold(name: str) -> None:
    results = doctest.testmod(import_module(f"penstock.sdk.{name}"))
    assert results.failed == 0
    assert results.attempted > 0


def test_importing_the_package_loads_no_client() -> None:
    program = "import sys, penstock, penstock.sdk; print('confluent_kafka' in sys.modules, 'penstock.sdk.producer' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False False\n"


def test_the_package_offers_its_clients_by_name() -> None:
    import penstock

    assert penstock.Producer.__module__ == "penstock.sdk.producer"
    with pytest.raises(AttributeError, match="no attribute 'Produzer'"):
        getattr(penstock, "Produzer")  # noqa: B009  # mypy knows that it is not there


def test_what_an_application_names_is_at_hand() -> None:
    import penstock.sdk

    for name in penstock.sdk.__all__:
        assert getattr(penstock.sdk, name).__name__ == name
