"""Secrets are compared in constant time: no `==` on a name that says it holds one."""

import ast
from pathlib import Path

import penstock.security

_SECRETS = ("_key", "proof", "digest", "signature", "password", "secret", "nonce")
_PUBLIC = {"is_proved"}


def _names(node: ast.expr) -> set[str]:
    return {
        found.id if isinstance(found, ast.Name) else found.attr
        for found in ast.walk(node)
        if isinstance(found, ast.Name | ast.Attribute)
    }


def comparisons(source: str) -> list[str]:
    """Return the comparisons with == or != in which a name of a secret occurs, but for its size."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            continue
        text = ast.unparse(node)
        sides = [side for side in (node.left, *node.comparators) if "len(" not in ast.unparse(side)]
        names = set().union(*map(_names, sides)) - _PUBLIC
        if any(name.endswith(_SECRETS) for name in names):
            found.append(text)
    return found


def test_the_search_finds_a_comparison() -> None:
    assert comparisons("if made.stored_key == credential.stored_key: pass") != []
    assert comparisons("if len(made.stored_key) == size: pass") == []


def test_no_secret_is_compared_with_an_operator() -> None:
    for path in Path(penstock.security.__path__[0]).glob("*.py"):
        assert comparisons(path.read_text()) == [], path.name
