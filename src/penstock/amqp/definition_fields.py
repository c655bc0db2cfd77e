"""Reads the fields of an entry of a definitions document, with errors that name the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class InvalidDefinitions(Exception):
    """A definitions document cannot be imported. The text names the section, entry and field."""


def read_object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidDefinitions(f"{place} is not a JSON object")
    return value


class Fields:
    """One entry. `place` is for example `queues[3]`."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values = values
        self.place = place

    def error(self, text: str) -> InvalidDefinitions:
        return InvalidDefinitions(f"{self.place}: {text}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        if not isinstance(value, str):
            raise self.error(f"{name} is not a string")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.values.get(name) is not None else None

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(f"{name} is not a list of strings")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} is neither true nor false")
        return value

    def integer(self, name: str, *, default: int) -> int:
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{name} is not an integer")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object. An empty list is one too: old RabbitMQ versions write it so."""
        value = self.values.get(name) or {}
        if not isinstance(value, dict):
            raise self.error(f"{name} is not a JSON object")
        return value
