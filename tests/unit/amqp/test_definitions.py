"""Definitions: what RabbitMQ exports is read, what is exported reads the same, errors name the place."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.arguments import QueueProperties, QueueType
from penstock.amqp.definition_fields import InvalidDefinitions
from penstock.amqp.definitions import (
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    export_definitions,
    import_definitions,
    plain_arguments,
    read_arguments,
)
from penstock.amqp.routing.bindings import exchange_named, queue_named
from penstock.amqp.routing.exchange import ExchangeProperties
from penstock.wire.amqp.tables import Scaled

# as rabbitmqctl export_definitions of version 3.13 and 4.x writes it
DOCUMENT: dict[str, Any] = {
    "rabbit_version": "4.0.5",
    "rabbitmq_version": "4.0.5",
    "product_name": "RabbitMQ",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [
        {
            "name": "/",
            "description": "Default virtual host",
            "metadata": {"description": "Default virtual host", "tags": []},
            "tags": [],
        },
        {
            "name": "shop",
            "limits": {"max-queues": 10},
            "metadata": {"description": "", "tags": ["a"], "default_queue_type": "quorum"},
        },
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [],
    "parameters": [
        {
            "vhost": "/",
            "component": "operator_policy",
            "name": "limit",
            "value": {
                "apply-to": "queues",
                "definition": {"max-length": 100},
                "pattern": ".*",
                "priority": 1,
            },
        },
        {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
    "policies": [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^(?!amq\\.).*",
            "apply-to": "queues",
            "definition": {"message-ttl": 5000},
            "priority": 3,
        }
    ],
    "queues": [
        {
            "name": "work",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5},
        },
        {"name": "plain", "vhost": "/", "durable": False, "auto_delete": True, "arguments": []},
        {"name": "amq.gen-1", "vhost": "/", "durable": False, "auto_delete": True, "arguments": {}},
    ],
    "exchanges": [
        {
            "name": "x",
            "vhost": "/",
            "type": "x-delayed-message",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"x-delayed-type": "direct"},
        },
        {"name": "amq.topic", "vhost": "/", "type": "topic", "durable": True},
    ],
    "bindings": [
        {
            "source": "x",
            "vhost": "/",
            "destination": "plain",
            "destination_type": "queue",
            "routing_key": "k",
            "arguments": {},
        },
        {
            "source": "x",
            "vhost": "/",
            "destination": "amq.topic",
            "destination_type": "exchange",
            "routing_key": "",
            "arguments": {"x-match": "any", "n": 1, "f": 1.5, "b": True, "z": None, "l": [1]},
        },
    ],
}


def test_an_export_of_rabbitmq_is_read() -> None:
    read = import_definitions(DOCUMENT)
    assert [vhost.name for vhost in read.vhosts] == ["/", "shop"]
    assert read.vhosts[1].default_queue_type == "quorum"
    assert read.vhosts[1].limits == {"max-queues": 10}
    work, plain = read.queues
    assert (work.vhost, work.properties.type) == ("shop", QueueType.QUORUM)
    assert work.properties.arguments["x-delivery-limit"] == ("l", 5)
    assert (plain.properties.durable, plain.properties.auto_delete) == (False, True)
    assert [exchange.name for exchange in read.exchanges] == ["x"]
    assert read.bindings[0].binding.destination == queue_named("plain")
    assert read.bindings[1].binding.destination == exchange_named("amq.topic")
    assert read.bindings[1].binding.arguments["l"] == ("A", [("l", 1)])
    (policy,) = read.policies
    assert (policy.policy.priority, dict(policy.policy.definition)) == (3, {"message-ttl": 5000})
    (operator,) = read.operator_policies
    assert dict(operator.policy.definition) == {"max-length": 100}
    assert [entry["component"] for entry in read.kept["parameters"]] == ["shovel"]
    assert read.kept["users"] == DOCUMENT["users"]
    assert len(read.skipped) == 2


def test_what_is_exported_reads_the_same() -> None:
    read = import_definitions(DOCUMENT)
    document = export_definitions(read, version="1.0")
    assert export_definitions(import_definitions(document), version="1.0") == document
    assert json.loads(json.dumps(document)) == document
    assert document["queues"][1] == {
        "vhost": "shop",
        "name": "work",
        "type": "quorum",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5},
    }


def test_reserved_exchanges_and_exclusive_queues_are_not_exported() -> None:
    definitions = Definitions(
        exchanges=[
            ExchangeDefinition("/", name, ExchangeProperties("direct"))
            for name in ("", "amq.direct", "x")
        ],
        queues=[
            QueueDefinition("/", "mine", QueueProperties(exclusive=True)),
            QueueDefinition("/", "q", QueueProperties()),
        ],
    )
    document = export_definitions(definitions, version="1.0")
    assert [entry["name"] for entry in document["exchanges"]] == ["x"]
    assert [entry["name"] for entry in document["queues"]] == ["q"]


def test_definitions_of_one_vhost_need_not_name_it() -> None:
    document = {"queues": [{"name": "q"}], "vhosts": []}
    assert import_definitions(document, vhost="shop").queues[0].vhost == "shop"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "definitions is not a JSON object"),
        ({"queues": {}}, "queues is not a list"),
        ({"queues": [1]}, r"queues\[0\] is not a JSON object"),
        ({"queues": [{"vhost": "/"}]}, r"queues\[0\]: name is missing"),
        ({"queues": [{"name": "q"}]}, r"queues\[0\]: vhost is missing"),
        ({"queues": [{"name": "q", "vhost": "/", "durable": 1}]}, r"queues\[0\]: durable is neither"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"x-expires": 0}}]}, r"queues\[0\]: invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"a": 1 << 70}}]}, "no type of a field table"),
        ({"exchanges": [{"name": "x", "vhost": "/", "type": "odd"}]}, r"exchanges\[0\]: unknown exchange type 'odd'"),
        ({"bindings": [{"source": "x", "vhost": "/", "destination": "q", "destination_type": "topic"}]}, r"bindings\[0\]: destination_type 'topic' is neither"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"expires": 1}}]}, r"policies\[0\]: pattern '\(' is not supported"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {}}]}, r"policies\[0\]: policy 'p' has an empty definition"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "", "apply-to": "cats", "definition": {"expires": 1}}]}, r"policies\[0\]: apply-to 'cats' is none of all, queues"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "", "priority": "1", "definition": {"expires": 1}}]}, r"policies\[0\]: priority is not an integer"),
        ({"vhosts": [{"name": "a"}], "queues": [{"name": "q", "vhost": "b"}]}, "names vhost 'b'; the vhosts of the document are a"),
    ],
)  # fmt: skip
def test_errors_name_the_place(document: Any, text: str) -> None:
    with pytest.raises(InvalidDefinitions, match=text):
        import_definitions(document)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _json))
def test_arguments_survive_both_conversions(arguments: dict[str, Any]) -> None:
    assert plain_arguments(read_arguments(arguments)) == arguments


@given(_json)
def test_any_json_is_read_or_refused(document: Any) -> None:
    for section in ("queues", "exchanges", "bindings", "policies", "vhosts", "parameters"):
        with suppress(InvalidDefinitions):
            import_definitions({section: document})


def test_values_that_json_lacks_are_exported() -> None:
    table = {"x": ("x", b"\xff"), "D": ("D", Scaled(2, 150)), "T": ("T", 5)}
    assert plain_arguments(table) == {"x": "\ufffd", "D": 1.5, "T": 5}
