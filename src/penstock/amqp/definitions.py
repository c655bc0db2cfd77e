"""Definitions: virtual hosts, exchanges, queues, bindings and policies in RabbitMQ's JSON.

The JSON has no types of field tables: numbers become 64-bit integers or doubles, as in RabbitMQ. What
other features read (users, permissions, parameters) is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from penstock.amqp.arguments import QueueProperties, check_queue_declaration
from penstock.amqp.definition_fields import Fields, InvalidDefinitions, read_object
from penstock.amqp.policies import ApplyTo, Policy
from penstock.amqp.routing.bindings import Binding, Destination, DestinationKind
from penstock.amqp.routing.exchange import ExchangeProperties
from penstock.amqp.routing.exchange_types import check_exchange_arguments, check_exchange_type
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.tables import FieldTable, FieldValue, as_plain

RESERVED_PREFIX: Final = "amq."
KEPT_SECTIONS: Final = (
    *("users", "permissions", "topic_permissions", "parameters", "global_parameters"),
)
_Entry = TypeVar("_Entry")


class VhostDefinition(NamedTuple):
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str | None = None
    limits: Mapping[str, int] = {}  # never changed


class ExchangeDefinition(NamedTuple):
    vhost: str
    name: str
    properties: ExchangeProperties


class QueueDefinition(NamedTuple):
    vhost: str
    name: str
    properties: QueueProperties


class BindingDefinition(NamedTuple):
    vhost: str
    binding: Binding


class PolicyDefinition(NamedTuple):
    vhost: str
    policy: Policy


@dataclass(slots=True)
class Definitions:
    vhosts: list[VhostDefinition] = field(default_factory=list)
    exchanges: list[ExchangeDefinition] = field(default_factory=list)
    queues: list[QueueDefinition] = field(default_factory=list)
    bindings: list[BindingDefinition] = field(default_factory=list)
    policies: list[PolicyDefinition] = field(default_factory=list)
    operator_policies: list[PolicyDefinition] = field(default_factory=list)
    kept: dict[str, list[Any]] = field(default_factory=dict)  # sections of other features
    skipped: list[str] = field(default_factory=list)  # what an import left out, and why


# Import -------------------------------------------------------------------------------------------------


def import_definitions(document: Any, *, vhost: str | None = None) -> Definitions:
    """Read parsed JSON. With `vhost`, entries need not name theirs: all go to that one.

    Raises InvalidDefinitions that names the section, the number of the entry and what is wrong.
    """
    sections = read_object(document, "definitions")
    read = Definitions()
    read.vhosts = _entries(sections, "vhosts", _read_vhost)
    read.exchanges = _entries(sections, "exchanges", lambda each: _read_exchange(each, vhost))
    read.queues = _entries(sections, "queues", lambda each: _read_queue(each, vhost))
    read.bindings = _entries(sections, "bindings", lambda each: _read_binding(each, vhost))
    read.policies = _entries(sections, "policies", lambda each: _read_policy(each, vhost))
    _read_kept(sections, read, vhost)
    _skip_reserved(read)
    _check_vhosts(read, vhost)
    return read


def _entries(
    sections: Mapping[str, Any], name: str, read: Callable[[Fields], _Entry]
) -> list[_Entry]:
    entries = sections.get(name, [])
    if not isinstance(entries, list):
        raise InvalidDefinitions(f"{name} is not a list")
    found = []
    for number, entry in enumerate(entries):
        place = f"{name}[{number}]"
        try:
            found.append(read(Fields(read_object(entry, place), place)))
        except AmqpError as error:
            raise InvalidDefinitions(f"{place}: {error.text}") from None
    return found


def _read_vhost(fields: Fields) -> VhostDefinition:
    metadata = Fields(fields.mapping("metadata"), fields.place)
    limits = fields.mapping("limits")
    return VhostDefinition(
        fields.text("name"),
        fields.text("description", metadata.text("description", "")),
        tuple(fields.texts("tags") or metadata.texts("tags")),
        fields.optional_text("default_queue_type") or metadata.optional_text("default_queue_type"),
        {name: value for name, value in limits.items() if isinstance(value, int)},
    )


def _read_exchange(fields: Fields, vhost: str | None) -> ExchangeDefinition:
    kind = fields.text("type")
    arguments = read_arguments(fields.mapping("arguments"))
    check_exchange_type(kind)
    check_exchange_arguments(kind, arguments)
    properties = ExchangeProperties(
        kind,
        fields.boolean("durable", default=True),
        fields.boolean("auto_delete", default=False),
        fields.boolean("internal", default=False),
        arguments,
    )
    return ExchangeDefinition(fields.text("vhost", vhost), fields.text("name"), properties)


def _read_queue(fields: Fields, vhost: str | None) -> QueueDefinition:
    arguments = read_arguments(fields.mapping("arguments"))
    kind = fields.optional_text("type")
    if kind is not None and kind not in ("classic", "undefined"):
        arguments.setdefault("x-queue-type", ("S", kind))
    properties = QueueProperties(
        durable=fields.boolean("durable", default=True),
        auto_delete=fields.boolean("auto_delete", default=False),
        arguments=arguments,
    )
    definition = QueueDefinition(fields.text("vhost", vhost), fields.text("name"), properties)
    check_queue_declaration(definition.name, properties, definition.vhost)
    return definition


def _read_binding(fields: Fields, vhost: str | None) -> BindingDefinition:
    kind = fields.text("destination_type")
    if kind not in list(DestinationKind):
        raise fields.error(f"destination_type {kind!r} is neither 'queue' nor 'exchange'")
    binding = Binding(
        fields.text("source"),
        Destination(DestinationKind(kind), fields.text("destination")),
        fields.text("routing_key", ""),
        read_arguments(fields.mapping("arguments")),
    )
    return BindingDefinition(fields.text("vhost", vhost), binding)


def _read_policy(fields: Fields, vhost: str | None) -> PolicyDefinition:
    apply_to = fields.text("apply-to", ApplyTo.ALL)
    if apply_to not in list(ApplyTo):
        raise fields.error(f"apply-to {apply_to!r} is none of {', '.join(ApplyTo)}")
    policy = Policy(
        fields.text("name"),
        fields.text("pattern"),
        fields.mapping("definition"),
        apply_to=ApplyTo(apply_to),
        priority=fields.integer("priority", default=0),
    )
    return PolicyDefinition(fields.text("vhost", vhost), policy)


def _read_kept(sections: Mapping[str, Any], read: Definitions, vhost: str | None) -> None:
    """Keep the sections of other features. Operator policies are among the parameters."""
    for name in KEPT_SECTIONS:
        entries = _entries(sections, name, lambda each: each)
        kept = []
        for fields in entries:
            if name == "parameters" and fields.values.get("component") == "operator_policy":
                value = {**fields.mapping("value"), "name": fields.text("name")}
                policy = Fields({**value, "vhost": fields.text("vhost", vhost)}, fields.place)
                read.operator_policies.append(_read_policy(policy, vhost))
            else:
                kept.append(dict(fields.values))
        if kept:
            read.kept[name] = kept


def _skip_reserved(read: Definitions) -> None:
    """Leave out what every virtual host has, and names that nobody may declare."""
    for exchange in list(read.exchanges):
        if _is_reserved(exchange.name):
            read.exchanges.remove(exchange)
            read.skipped.append(f"exchange '{exchange.name}' in vhost '{exchange.vhost}': reserved")
    for queue in list(read.queues):
        if queue.name.startswith(RESERVED_PREFIX):
            read.queues.remove(queue)
            read.skipped.append(f"queue '{queue.name}' in vhost '{queue.vhost}': reserved")


def _is_reserved(exchange: str) -> bool:
    return not exchange or exchange.startswith(RESERVED_PREFIX)


def _check_vhosts(read: Definitions, vhost: str | None) -> None:
    """Check that entries name virtual hosts of the same document, if it defines any."""
    known = {definition.name for definition in read.vhosts}
    if not known or vhost is not None:
        return
    used: list[Iterable[Any]] = [read.exchanges, read.queues, read.bindings, read.policies]
    for section in used:
        for entry in section:
            if entry.vhost not in known:
                raise InvalidDefinitions(
                    f"an entry names vhost '{entry.vhost}'; the vhosts of the document are "
                    f"{', '.join(sorted(known))}"
                )


def read_arguments(arguments: Mapping[str, Any]) -> FieldTable:
    """Return a field table for plain JSON, with RabbitMQ's types."""
    return {name: _field_value(value) for name, value in arguments.items()}


def _field_value(value: Any) -> FieldValue:
    match value:
        case None:
            return "V", None
        case bool():
            return "t", value
        case int() if -(1 << 63) <= value < 1 << 63:
            return "l", value
        case float():
            return "d", value
        case str():
            return "S", value
        case list():
            return "A", [_field_value(element) for element in value]
        case dict():
            return "F", read_arguments(value)
        case _:
            raise InvalidDefinitions(f"argument {value!r} has no type of a field table")


# Export -------------------------------------------------------------------------------------------------


def export_definitions(definitions: Definitions, *, version: str) -> dict[str, Any]:
    """Return JSON that RabbitMQ imports too. The order does not depend on how it was declared.

    Left out is what every virtual host has, and what goes with its connection.
    """
    document: dict[str, Any] = {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": "Penstock",
        "product_version": version,
    }
    for name in KEPT_SECTIONS:
        document[name] = list(definitions.kept.get(name, []))
    document["parameters"] += [
        {
            "vhost": vhost,
            "component": "operator_policy",
            "name": policy.name,
            "value": {
                key: value
                for key, value in _policy(vhost, policy).items()
                if key not in ("vhost", "name")
            },
        }
        for vhost, policy in definitions.operator_policies
    ]
    document["vhosts"] = [_vhost(each) for each in sorted(definitions.vhosts, key=_vhost_name)]
    document["exchanges"] = _sorted(
        _exchange(each) for each in definitions.exchanges if not _is_reserved(each.name)
    )
    document["queues"] = _sorted(
        _queue(each) for each in definitions.queues if not each.properties.exclusive
    )
    document["bindings"] = _sorted(_binding(each) for each in definitions.bindings)
    document["policies"] = _sorted(_policy(*each) for each in definitions.policies)
    return document


def _vhost_name(vhost: VhostDefinition) -> str:
    return vhost.name


def _sorted(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: [str(value) for value in entry.values()])


def _vhost(vhost: VhostDefinition) -> dict[str, Any]:
    metadata: dict[str, Any] = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type is not None:
        metadata["default_queue_type"] = vhost.default_queue_type
    return {"name": vhost.name, "limits": dict(vhost.limits), "metadata": metadata}


def _exchange(exchange: ExchangeDefinition) -> dict[str, Any]:
    kind, durable, auto_delete, internal, arguments = exchange.properties
    return {
        "vhost": exchange.vhost,
        "name": exchange.name,
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": plain_arguments(arguments),
    }


def _queue(queue: QueueDefinition) -> dict[str, Any]:
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "type": str(queue.properties.type),
        "durable": queue.properties.durable,
        "auto_delete": queue.properties.auto_delete,
        "arguments": plain_arguments(queue.properties.arguments),
    }


def _binding(definition: BindingDefinition) -> dict[str, Any]:
    source, destination, routing_key, arguments = definition.binding
    return {
        "vhost": definition.vhost,
        "source": source,
        "destination": destination.name,
        "destination_type": str(destination.kind),
        "routing_key": routing_key,
        "arguments": plain_arguments(arguments),
    }


def _policy(vhost: str, policy: Policy) -> dict[str, Any]:
    return {
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern.text,
        "apply-to": str(policy.apply_to),
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def plain_arguments(arguments: FieldTable) -> dict[str, Any]:
    """Return JSON for a field table. Bytes become text, decimals numbers."""
    return {name: _plain(as_plain(value)) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode(errors="replace")
        case str():
            return value.encode(errors="surrogateescape").decode(errors="replace")
        case tuple():  # Scaled
            return value[1] / 10 ** value[0]
        case list():
            return [_plain(element) for element in value]
        case dict():
            return {name: _plain(element) for name, element in value.items()}
        case _:
            return value
