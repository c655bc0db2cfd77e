"""Make a plan's inputs from a TOML file. An unknown key is an error that names the nearest one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from penstock.planner import fields
from penstock.planner.inputs import Cluster, Inputs, Machine, PlanError, Prices, Topic
from penstock.planner.quantities import nearest

_PARTS: Final = ("topic", "cluster", "machine", "machines", "prices", "limits", "cpu")
_MAX_TEXT: Final = 200


def merge(inputs: Inputs, document: Mapping[str, object], source: str) -> Inputs:
    """Replace in `inputs` everything that the file `source` sets."""
    for key in document:
        if key not in _PARTS:
            hint = nearest(key, list(_PARTS)) or f" (known: {', '.join(_PARTS)})"
            raise PlanError(f"{source}: {key}: unknown key{hint}")
    if "topic" in document:
        inputs = replace(inputs, topics=_topics(document["topic"], f"{source}: "))
    if "cluster" in document:
        inputs = replace(inputs, cluster=_cluster(inputs.cluster, document["cluster"], source))
    if "machines" in document:
        inputs = replace(inputs, machines=_machines(document["machines"], source))
    if "machine" in document:
        inputs = replace(inputs, machine_name=_text(document["machine"], f"{source}: machine"))
    if "prices" in document:
        inputs = replace(inputs, prices=_prices(inputs.prices, document["prices"], source))
        inputs = replace(inputs, own_prices=True)
    if "limits" in document:
        read = _section(document["limits"], fields.LIMITS, f"{source}: limits")
        inputs = replace(inputs, limits=replace(inputs.limits, **read))
    if "cpu" in document:
        read = _section(document["cpu"], fields.CPU, f"{source}: cpu")
        inputs = replace(inputs, cpu=replace(inputs.cpu, **read))
    return inputs


def _topics(value: object, source: str) -> tuple[Topic, ...]:
    tables = [value] if isinstance(value, Mapping) else value
    if not isinstance(tables, Sequence) or isinstance(tables, str) or not tables:
        raise PlanError(f"{source}topic: expected tables such as [[topic]]")
    topics: list[Topic] = []
    for number, table in enumerate(tables, 1):
        place = f"{source}topic {number}"
        read = _section(table, fields.TOPIC, place, extra=("name", "framed"))
        if "framed" in table:
            read["framed"] = _truth(table["framed"], f"{place}: framed")
        name = _text(table["name"], f"{place}: name") if "name" in table else f"topic {number}"
        if any(topic.name == name for topic in topics):
            raise PlanError(f"{place}: name: there are two topics {name!r}")
        topics.append(replace(Topic(name=name), **read))
    return tuple(topics)


def _cluster(cluster: Cluster, value: object, source: str) -> Cluster:
    place = f"{source}: cluster"
    read = _section(value, fields.CLUSTER, place, extra=("rack_aware",))
    if isinstance(value, Mapping) and "rack_aware" in value:
        read["rack_aware"] = _truth(value["rack_aware"], f"{place}: rack_aware")
    return replace(cluster, **read)


def _machines(value: object, source: str) -> Mapping[str, Machine]:
    if not isinstance(value, Mapping) or not value:
        raise PlanError(f"{source}: machines: expected tables such as [machines.small]")
    return MappingProxyType(
        {
            _text(name, f"{source}: machines: a name"): _machine(
                table, f"{source}: machines.{name}"
            )
            for name, table in value.items()
        }
    )


def _machine(table: object, place: str) -> Machine:
    """Require every key: a value of the example machine would look like its own."""
    read = _section(table, fields.MACHINE, place)
    missing = [field for field in fields.MACHINE if field.name not in read]
    if missing:
        name, sample = missing[0].name, missing[0].sample
        raise PlanError(f"{place}: {name} is missing ({missing[0].meaning}, for example {sample})")
    return Machine(**read)


def _prices(prices: Prices, value: object, source: str) -> Prices:
    place = f"{source}: prices"
    read = _section(value, fields.PRICES, place, extra=("currency",))
    if isinstance(value, Mapping) and "currency" in value:
        prices = replace(prices, currency=_text(value["currency"], f"{place}: currency"))
    return replace(prices, **read)


def _section(
    value: object, known: Sequence[fields.Field], place: str, extra: Sequence[str] = ()
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{place}: expected a table of keys and values")
    return fields.read_table(value, known, f"{place}: ", extra)


def _truth(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise PlanError(f"{place}: expected true or false, not {value!r}")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT or not value.isprintable():
        raise PlanError(f"{place}: expected a text of 1 to {_MAX_TEXT} printable characters")
    return value
