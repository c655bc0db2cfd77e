"""The table of all metrics. A name is registered once; a family keeps a bounded number of label sets."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from penstock.telemetry.instruments import LATENCY_BOUNDS_MS, Counter, Gauge, Histogram

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
LabelValues: TypeAlias = tuple[str, ...]
Sample: TypeAlias = tuple[LabelValues, float]
Instrument = TypeVar("Instrument", Counter, Gauge, Histogram)

LABEL_SETS_LIMIT: Final = 10_000
SAMPLED_LABEL_SETS_LIMIT: Final = 200_000  # these cost nothing between scrapes
OVERFLOW: Final = "_other"

_METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Family(Generic[Instrument]):
    """One metric name with one instrument for each set of label values, made on first use and kept.

    Past `limit` label sets, new ones share one instrument labelled `_other`: sums stay right, memory stays bounded.
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        kind: Kind,
        label_names: Sequence[str],
        make: Callable[[], Instrument],
        limit: int = LABEL_SETS_LIMIT,
    ) -> None:
        self.name: Final = name
        self.help: Final = help_text
        self.kind: Final = kind
        self.label_names: Final = tuple(label_names)
        self._make: Callable[[], Instrument] = make
        self._limit: Final = limit
        self._children: dict[LabelValues, Instrument] = {}

    @property
    def children(self) -> Mapping[LabelValues, Instrument]:
        return MappingProxyType(self._children)

    def labels(self, *values: str) -> Instrument:
        """The instrument of these label values. Keep it: the lookup is not for the hot path."""
        child = self._children.get(values)
        return child if child is not None else self._add(values)

    def remove(self, *values: str) -> None:
        """Forgets a label set whose thing is gone, such as a deleted topic."""
        self._children.pop(values, None)

    def _add(self, values: LabelValues) -> Instrument:
        if len(values) != len(self.label_names):
            raise ValueError(f"{self.name} has labels {self.label_names}, not {values}")
        if len(self._children) >= self._limit:
            values = (OVERFLOW,) * len(values)
        return self._children.setdefault(values, self._make())


class SampledFamily:
    """A metric that is read from the thing itself at each scrape, and costs nothing in between.

    `read` is drawn from over several turns of the loop: let it walk a snapshot (`list(things)`).
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        kind: Literal["counter", "gauge"],
        label_names: Sequence[str],
        read: Callable[[], Iterable[Sample]],
    ) -> None:
        self.name: Final = name
        self.help: Final = help_text
        self.kind: Final = kind
        self.label_names: Final = tuple(label_names)
        self._read: Final = read

    def samples(self) -> Iterator[Sample]:
        return islice(self._read(), SAMPLED_LABEL_SETS_LIMIT)


AnyFamily: TypeAlias = Family[Counter] | Family[Gauge] | Family[Histogram] | SampledFamily


class Registry:
    """All families, in the order of their registration."""

    def __init__(self) -> None:
        self._families: dict[str, AnyFamily] = {}

    def families(self) -> list[AnyFamily]:
        return list(self._families.values())

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family[Counter]:
        family = Family(name, help_text, "counter", labels, Counter)
        self._register(family)
        return family

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family[Gauge]:
        family = Family(name, help_text, "gauge", labels, Gauge)
        self._register(family)
        return family

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BOUNDS_MS,
    ) -> Family[Histogram]:
        family = Family(name, help_text, "histogram", labels, lambda: Histogram(bounds))
        self._register(family)
        return family

    def gauge_from(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge without labels whose value is asked for at each scrape."""
        self.gauges_from(name, help_text, (), lambda: (((), read()),))

    def gauges_from(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        read: Callable[[], Iterable[Sample]],
    ) -> None:
        """Gauges, one for each (label values, value) that `read` gives at each scrape."""
        self._register(SampledFamily(name, help_text, "gauge", labels, read))

    def _register(self, family: AnyFamily) -> None:
        if not _METRIC_NAME.fullmatch(family.name):
            raise ValueError(f"{family.name!r} is not a metric name")
        for label in family.label_names:
            if not _LABEL_NAME.fullmatch(label) or label == "le":
                raise ValueError(f"{label!r} is not a label name for {family.name}")
        if family.name in self._families:
            raise ValueError(f"{family.name} is registered already")
        self._families[family.name] = family
