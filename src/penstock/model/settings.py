"""One setting: its Kafka name, type, default, bounds and meaning; text in, checked value out.

A class of settings declares each row once: the attribute, its type and its default are the row.
"""

import re
from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from penstock.model.errors import InvalidConfig
from penstock.model.units import (
    DOUBLE_MAX,
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    Unit,
    parse_quantity,
)

Value = bool | int | float | str | frozenset[str] | None

IntT = TypeVar("IntT", int, int | None)
TextT = TypeVar("TextT", str, str | None)


class Kind(IntEnum):
    """Types of a value, with the numbers that DescribeConfigs uses."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(Enum):
    """How a broker setting can change while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    PER_LISTENER = "per-listener"  # at run time only with the prefix of a listener
    CLUSTER_WIDE = "cluster-wide"


_BOUNDS: Final[Mapping[Kind, tuple[float, float]]] = {
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (INT_MIN, INT_MAX),
    Kind.LONG: (LONG_MIN, LONG_MAX),
}


class Setting(NamedTuple):
    """One row of a table of settings."""

    name: str
    kind: Kind
    default: Value
    doc: str
    unit: Unit = Unit.NONE
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False  # a list with `choices` may name none of them
    form: str = ""  # a regular expression that a text, or each item of a list, must match
    form_doc: str = ""  # the same for people
    synonyms: tuple[
        str, ...
    ] = ()  # broker settings that give a topic setting its default, in order
    update: Update = Update.READ_ONLY
    unsupported: str = ""  # why nothing but the default is accepted
    no_effect: str = ""  # why any value is accepted and changes nothing
    kafka_default: str | None = None  # set where our default differs on purpose

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        """As in Kafka, a value of an unknown type may be a secret."""
        return self.kind in (Kind.PASSWORD, Kind.UNKNOWN)

    def parse(self, text: str) -> Value:
        """The checked value of `text`; raises InvalidConfig with the setting's name and the remedy."""
        text = text.strip()
        value = self._read(text)
        self._check(text, value)
        if self.unsupported and value != self.default:
            raise InvalidConfig(f"{self.name}={text} is not supported: {self.unsupported}")
        return value

    def render(self, value: Value) -> str | None:
        """The text that Kafka would print for `value`."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case frozenset():
                return ",".join(sorted(value))
            case float():
                return repr(value).replace("e+", "E")
            case int() | str():
                return str(value)

    def canonical(self, text: str) -> str:
        """`text`, checked and in Kafka's own notation: `7d` becomes `604800000`. Lists keep their order."""
        value = self.parse(text)
        if self.kind is Kind.LIST:
            return ",".join(split_list(text))
        return self.render(value) or ""

    def _read(self, text: str) -> Value:
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self._refusal(text, "give true or false")
                return text.lower() == "true"
            case Kind.DOUBLE:
                return self._read_double(text)
            case Kind.LIST:
                return frozenset(split_list(text))
            case Kind.INT | Kind.LONG | Kind.SHORT:
                try:
                    return parse_quantity(text, self.unit)
                except ValueError as error:
                    raise self._refusal(text, str(error)) from None
            case Kind.STRING | Kind.CLASS | Kind.PASSWORD | Kind.UNKNOWN:
                return text

    def _read_double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            try:
                return float(parse_quantity(text, self.unit))
            except ValueError as error:
                raise self._refusal(text, str(error)) from None
        if value != value or value in (float("inf"), float("-inf")):
            raise self._refusal(text, "give a number")
        return value

    def _check(self, text: str, value: Value) -> None:
        if self.form and isinstance(value, frozenset | str):
            items = [value] if isinstance(value, str) else sorted(value)
            strange = [item for item in items if not re.fullmatch(self.form, item, re.ASCII)]
            if strange:
                raise self._refusal(text, f"{strange[0]!r} is not {self.form_doc}")
        elif self.choices:
            named = sorted(value) if isinstance(value, frozenset) else [self.render(value) or ""]
            strange = [name for name in named if name not in self.choices]
            if strange or not (named or self.may_be_empty):
                wrong = f"{strange[0]!r} is unknown" if strange else "it is empty"
                raise self._refusal(text, f"{wrong}; choose from {', '.join(self.choices)}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high = _BOUNDS.get(self.kind, (-DOUBLE_MAX, DOUBLE_MAX))
            low = low if self.at_least is None else self.at_least
            high = high if self.at_most is None else self.at_most
            if value < low:
                raise self._refusal(text, f"the least is {low}")
            if value > high:
                raise self._refusal(text, f"the most is {high}")

    def _refusal(self, text: str, remedy: str) -> InvalidConfig:
        shown = "[hidden]" if self.is_sensitive else text
        return InvalidConfig(f"invalid value {shown!r} for {self.name}: {remedy}")


class Table:
    """Collects the rows that a class of settings declares; each method returns the row's default."""

    def __init__(self) -> None:
        self._rows: dict[str, Setting] = {}

    @property
    def rows(self) -> Mapping[str, Setting]:
        return MappingProxyType(self._rows)

    def add(self, setting: Setting) -> None:
        assert setting.name not in self._rows, f"{setting.name} is declared twice"
        self._rows[setting.name] = setting

    def boolean(self, name: str, default: bool, doc: str, **more: Any) -> bool:
        self._add(name, Kind.BOOLEAN, default, doc, more)
        return default

    def integer(self, name: str, default: IntT, doc: str, **more: Any) -> IntT:
        """A 32-bit number."""
        self._add(name, Kind.INT, default, doc, more)
        return default

    def short(self, name: str, default: int, doc: str, **more: Any) -> int:
        """A 16-bit number."""
        self._add(name, Kind.SHORT, default, doc, more)
        return default

    def long(self, name: str, default: IntT, doc: str, **more: Any) -> IntT:
        """A 64-bit number."""
        self._add(name, Kind.LONG, default, doc, more)
        return default

    def double(self, name: str, default: float, doc: str, **more: Any) -> float:
        self._add(name, Kind.DOUBLE, default, doc, more)
        return default

    def string(self, name: str, default: TextT, doc: str, **more: Any) -> TextT:
        self._add(name, Kind.STRING, default, doc, more)
        return default

    def listing(self, name: str, default: str, doc: str, **more: Any) -> frozenset[str]:
        values = frozenset(split_list(default))
        self._add(name, Kind.LIST, values, doc, more)
        return values

    def _add(self, name: str, kind: Kind, default: Value, doc: str, more: dict[str, Any]) -> None:
        setting = Setting(name, kind, default, doc, unit=Unit.of(name))
        self.add(setting._replace(**more) if more else setting)

    def twin(self, name: str, of: Setting, **more: Any) -> Any:  # typed where it is declared
        """A broker setting that gives the topic setting `of` its default."""
        row = of._replace(name=name, unit=Unit.of(name), synonyms=(), update=Update.CLUSTER_WIDE)
        self.add(row._replace(**more) if more else row)
        return more.get("default", of.default)


def split_list(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list, once each, in the order given."""
    return tuple(dict.fromkeys(item for item in (part.strip() for part in text.split(",")) if item))
