"""`penstock doctor`: what is wrong on this host and in this cluster, why it matters, and what to do."""

import os
import re
import shutil
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from difflib import get_close_matches
from textwrap import fill
from typing import Any, Final, NamedTuple

from penstock.cli.arguments import UsageError, add_bootstrap, add_json, count, examples
from penstock.cli.output import Output, counted
from penstock.cli.session import with_pool
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.doctor import cluster_reader, disk_probe, host_reader
from penstock.doctor.checks import ALL_CHECKS, CLUSTER_CHECKS, UNREACHABLE
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Finding, Severity, by_severity, examine
from penstock.doctor.host_checks import HOST_CHECKS
from penstock.doctor.host_facts import unknown

_DEFAULT_DATA: Final = "penstock-data"
_WIDEST: Final = 100
_LONGEST_MEASURE_S: Final = 60.0
_SHOWN_UNKNOWN: Final = 20
_COMMAND_AFTER: Final = re.compile("; (?=penstock |then )")  # such a step has a line of its own


class Report(NamedTuple):
    findings: list[Finding]
    checks: int
    unknown: list[str]


def configure(parser: ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = examples(
        "penstock doctor",
        "penstock doctor --host --data /var/lib/penstock --pid 4711",
        "penstock doctor --cluster --bootstrap broker-1:9092 --strict",
        "penstock doctor --json --ignore single-broker --ignore swappiness",
    )
    parser.add_argument("--host", action="store_true", help="check only this host")
    parser.add_argument("--cluster", action="store_true", help="check only the cluster")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help=f"a broker's data directory; its disk is measured (default: ./{_DEFAULT_DATA} if it exists)",
    )
    parser.add_argument(
        "--pid",
        type=count,
        metavar="N",
        help="a broker's process, for its limits (default: those of this command)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=2.0,
        metavar="N",
        help="how long the disk, and the rates of partitions, are measured (default 2; 0: not at all)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="ID",
        help="leave out a check; repeatable",
    )
    add_bootstrap(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    _check_ids(arguments.ignore)
    data = _data_directory(arguments)
    both = arguments.host == arguments.cluster
    replicas: int | None = None
    reports = []
    if both or arguments.cluster:
        try:
            facts = _cluster_facts(arguments)
        except ClientError as error:
            if not both:
                raise
            reports.append(
                Report(examine([UNREACHABLE], error.message, "cluster", arguments.ignore), 1, [])
            )
        else:
            replicas = _most_replicas(facts)
            reports.append(_cluster(facts, arguments))
    if both or arguments.host:
        reports.append(_host(arguments, data, replicas))
    report = Report(
        by_severity(finding for each in reports for finding in each.findings),
        sum(each.checks for each in reports),
        [name for each in reports for name in each.unknown],
    )
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(_document(report, arguments.ignore))
    else:
        _show(output, report)
    return _status(report, strict=arguments.strict)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_MEASURE_S:
        raise ArgumentTypeError(
            f"expected seconds from 0 to {_LONGEST_MEASURE_S:.0f}, not {text!r}"
        )
    return seconds


def _check_ids(ids: list[str]) -> None:
    for name in ids:
        if name not in ALL_CHECKS:
            near = get_close_matches(name, ALL_CHECKS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else "; see docs/doctor.md"
            raise UsageError(f"--ignore: there is no check {name!r}{hint}")


def _data_directory(arguments: Namespace) -> str | None:
    """The directory to measure; None if none was named and the default does not exist."""
    if arguments.pid is not None and not os.path.isdir(f"/proc/{arguments.pid}"):
        raise UsageError(f"--pid: there is no process {arguments.pid}")
    data: str = arguments.data or _DEFAULT_DATA
    if os.path.isdir(data):
        return data
    if arguments.data is not None:
        raise UsageError(f"--data: {data} is not a directory")
    return None


# The two scopes ----------------------------------------------------------------------------------


def _cluster_facts(arguments: Namespace) -> ClusterFacts:
    async def work(pool: Pool) -> ClusterFacts:
        now_ms = time.time_ns() // 1_000_000
        return await cluster_reader.gather(pool, now_ms=now_ms, seconds=arguments.seconds)

    return with_pool(arguments.bootstrap, work)


def _cluster(facts: ClusterFacts, arguments: Namespace) -> Report:
    found = examine(CLUSTER_CHECKS, facts, "cluster", arguments.ignore)
    return Report(found, len(CLUSTER_CHECKS), list(facts.unknown))


def _most_replicas(facts: ClusterFacts) -> int:
    held: dict[int, int] = {}
    for place in facts.places.values():
        for broker_id in place.replicas:
            held[broker_id] = held.get(broker_id, 0) + 1
    return max(held.values(), default=0)


def _host(arguments: Namespace, data: str | None, replicas: int | None) -> Report:
    times = None
    if data is not None and arguments.seconds:
        times = disk_probe.measure(data, arguments.seconds, time.perf_counter)
    facts = host_reader.gather(data, pid=arguments.pid, replicas=replicas, sync_times=times)
    missing = [] if data else ["data directory and its disk (name it: --data DIR)"]
    missing += unknown(facts)
    found = examine(HOST_CHECKS, facts, "host", arguments.ignore)
    return Report(found, len(HOST_CHECKS), missing)


# What is shown -----------------------------------------------------------------------------------


def _status(report: Report, *, strict: bool) -> int:
    fatal = {Severity.PROBLEM, Severity.WARNING} if strict else {Severity.PROBLEM}
    return int(any(finding.severity in fatal for finding in report.findings))


def _count(report: Report, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in report.findings)


def _document(report: Report, ignored: list[str]) -> dict[str, Any]:
    return {
        "healthy": not _count(report, Severity.PROBLEM),
        "problems": _count(report, Severity.PROBLEM),
        "warnings": _count(report, Severity.WARNING),
        "notes": _count(report, Severity.NOTE),
        "checks": report.checks,
        "findings": [finding._asdict() for finding in report.findings],
        "ignored": sorted(set(ignored)),
        "unknown": report.unknown,
    }


def _show(output: Output, report: Report) -> None:
    width = min(shutil.get_terminal_size().columns, _WIDEST)

    def paragraph(text: str, label: str = "", indent: int = 10) -> None:
        output.line(
            fill(
                text,
                width,
                initial_indent=label.ljust(indent),
                subsequent_indent=" " * indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    for finding in report.findings:
        output.line(f"{finding.severity.upper():<9} {finding.scope}: {finding.id}")
        paragraph(finding.fact)
        paragraph(finding.reason, "  why")
        for index, step in enumerate(_COMMAND_AFTER.split(finding.remedy)):
            paragraph(step, "" if index else "  remedy")
        output.line("")
    if report.unknown:
        shown = report.unknown[:_SHOWN_UNKNOWN]
        hidden = len(report.unknown) - len(shown)
        paragraph("; ".join(shown) + (f"; and {hidden} more" if hidden else ""), "unknown")
    totals = [
        counted(_count(report, severity), severity.value)
        for severity in Severity
        if _count(report, severity)
    ]
    output.line(f"{', '.join(totals) or 'nothing found'} ({report.checks} checks)")
