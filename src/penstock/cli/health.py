"""`penstock cluster health`: what is not well, why, and what to do about it."""

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from penstock.cli.output import Output
from penstock.cli.session import with_pool
from penstock.client import health, reassignments, throttles
from penstock.client.pool import Pool


def run(arguments: Namespace) -> int:
    async def work(pool: Pool) -> dict[str, Any]:
        members = await reassignments.members(pool)
        places = await reassignments.places(pool)
        min_isrs = await throttles.min_isrs(pool, sorted({at.topic for at in places}))
        return health.facts(members, places, min_isrs)

    found = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(found)
    else:
        _show(output, found)
    return 0 if found["healthy"] else 1


def _show(output: Output, found: dict[str, Any]) -> None:
    shown = found["problems"]
    missing = found["missing_brokers"]
    names = [row["broker"] for row in missing]
    output.fields({**found, "missing_brokers": names or None, "problems": len(shown)})
    if shown:
        output.line("")
        columns = ["partition", "problem", "leader", "replicas", "isr"]
        output.table(columns, [list(problem.values())[:-1] for problem in shown])
    remedies = [(f"broker {row['broker']}", row["remedy"]) for row in missing]
    remedies += [(row["partition"], row["remedy"]) for row in shown]
    if remedies:
        output.line("")
    for remedy, subjects in _grouped(remedies).items():
        more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
        output.line(f"{subjects[0]}{more}: {remedy}")


def _grouped(remedies: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for subject, remedy in remedies:
        groups.setdefault(remedy, []).append(subject)
    return groups
