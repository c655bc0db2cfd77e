"""Every API has a row, and its handler asks for nothing that the row does not have."""

import ast
import inspect
from types import ModuleType
from typing import Any

import pytest

from penstock.kafka import apis, config_resources
from penstock.kafka.apis import APIS
from penstock.security.api_operations import API_OPERATIONS, Need
from penstock.security.resources import SUPPORTED_OPERATIONS, Operation, ResourceType
from penstock.wire.api_keys import ApiKey

BY_NAME = {key.name: key for key in ApiKey}
SETTINGS_APIS = {ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}
TO_COME = {"SASL_HANDSHAKE", "SASL_AUTHENTICATE", "ALTER_CLIENT_QUOTAS", "ALTER_USER_SCRAM_CREDENTIALS"}  # fmt: skip


def test_every_api_has_a_row_and_every_row_an_api() -> None:
    assert {ApiKey(key).name for key in APIS} | TO_COME == set(API_OPERATIONS)
    assert set(API_OPERATIONS) <= set(BY_NAME)


def test_rows_have_operations_that_their_resources_support() -> None:
    for name, needs in API_OPERATIONS.items():
        for need in needs:
            assert need.operation in SUPPORTED_OPERATIONS[need.resource], (name, need)
        assert len({(need.operation, need.resource) for need in needs}) == len(needs), name


def handler_module(api: Any) -> ModuleType:
    return getattr(apis, ApiKey(api.key).name.lower())  # type: ignore[no-any-return]


def checked(module: ModuleType) -> set[tuple[Operation, ResourceType]]:
    """Return the pairs of operation and resource type that the calls of a module name."""
    pairs = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Call):
            continue
        names = [
            (argument.value.id, argument.attr)
            for argument in node.args
            if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name)
        ]
        operations = [Operation[name] for owner, name in names if owner == "Operation"]
        resources = [ResourceType[name] for owner, name in names if owner == "ResourceType"]
        pairs |= {(operation, resource) for operation in operations for resource in resources}
    return pairs


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_handlers_ask_for_what_the_table_says(key: int) -> None:
    if key in SETTINGS_APIS:
        return  # they ask through config_resources
    needs = {(need.operation, need.resource) for need in API_OPERATIONS[ApiKey(key).name]}
    found = checked(handler_module(APIS[key]))
    assert found <= needs, "the handler asks for something that the table does not have"
    assert bool(found) == bool(needs), "the handler asks for nothing, or the row is empty"


def test_the_search_finds_checks() -> None:
    assert checked(handler_module(APIS[ApiKey.END_TXN])) == {
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
    }
    assert "context.authorize" in inspect.getsource(config_resources)
    assert Need(Operation.READ, ResourceType.TOPIC).when == ""
