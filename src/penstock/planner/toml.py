"""Write a plan's inputs as a TOML file that can be edited and read again."""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.planner import fields, quantities
from penstock.planner.fields import Field
from penstock.planner.inputs import Cpu, Inputs, Machine
from penstock.planner.quantities import Parse

_UNIT_OF_PARSER: Final[dict[Parse, str]] = {
    quantities.parse_size: "bytes",
    quantities.parse_byte_rate: "bytes a second",
    quantities.parse_duration: "s",
}


def write_inputs(inputs: Inputs) -> str:
    """Write every input with its meaning, including defaults."""
    lines: list[str] = [f"# {note}" for note in inputs.notes]
    if inputs.machine_name:
        lines.append(f"machine = {_text(inputs.machine_name)}")
    for topic in inputs.topics:
        lines += ["", "[[topic]]", f"name = {_text(topic.name)}", *_values(topic, fields.TOPIC)]
        if not topic.framed:
            lines.append("framed = false  # `message` is what one message takes in the log")
    lines += ["", "[cluster]", f"rack_aware = {str(inputs.cluster.rack_aware).lower()}"]
    lines += _values(inputs.cluster, fields.CLUSTER)
    for name, machine in inputs.machines.items():
        lines += ["", *machine_lines(name, machine)]
    lines += ["", "[prices]"]
    if not inputs.own_prices:
        lines.append("# examples: replace them by your own")
    lines += [f"currency = {_text(inputs.prices.currency)}", *_values(inputs.prices, fields.PRICES)]
    lines += ["", "[limits]", *_values(inputs.limits, fields.LIMITS)]
    lines += ["", *cpu_lines(inputs.cpu)]
    return "\n".join(lines).lstrip("\n") + "\n"


def machine_lines(name: str, machine: Machine) -> list[str]:
    return [f"[machines.{_key(name)}]", *_values(machine, fields.MACHINE)]


def cpu_lines(cpu: Cpu) -> list[str]:
    return ["[cpu]", *_values(cpu, fields.CPU)]


def _values(owner: object, known: Iterable[Field]) -> Iterator[str]:
    """Write inputs of 0 or -1 that mean "computed" as comments with a sample."""
    for field in known:
        value = getattr(owner, field.name)
        is_computed = value < field.low or (value == 0 and field.name in _COMPUTED_AT_ZERO)
        if is_computed:
            yield f'# {field.name} = "{field.sample}"  # {field.meaning}'
        else:
            unit = _UNIT_OF_PARSER.get(field.parse)
            amount = f'"{_number(value)}s"' if unit == "s" else _number(value)
            suffix = f", {unit}" if unit and unit != "s" else ""
            yield f"{field.name} = {amount}  # {field.meaning}{suffix}"


_COMPUTED_AT_ZERO: Final = frozenset({"partitions", "kept"})


def _number(value: float) -> str:
    """Write the exact number, without `.0`."""
    return str(int(value)) if value == int(value) and value < 1e15 else repr(value)


def _text(value: str) -> str:
    """Quote a basic string; inputs hold printable characters only."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _text(name)
