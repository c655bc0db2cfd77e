"""Variants of one test: `make test` runs the first, `make slow` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def first_of(values: Iterable[Any]) -> list[ParameterSet]:
    """Return parameters of which all but the first have the marker `long`. A tuple is one set."""
    first, *others = (value if isinstance(value, tuple) else (value,) for value in values)
    return [
        pytest.param(*first),
        *(pytest.param(*other, marks=pytest.mark.long) for other in others),
    ]
