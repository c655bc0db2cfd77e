"""`penstock plan`: machines, disk, network, memory and cost for a load, and what would cost less."""

import tomllib
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.cli.arguments import UsageError, add_json, count, examples
from penstock.cli.output import Output, note
from penstock.planner import fields, planning
from penstock.planner.alternatives import cheaper, grow, growth_curve
from penstock.planner.document import merge
from penstock.planner.examples import EXAMPLES, check_section
from penstock.planner.facts import plan_facts
from penstock.planner.html import render_html
from penstock.planner.inputs import Inputs, PlanError, Topic
from penstock.planner.markdown import markdown_section, render_markdown
from penstock.planner.planning import Plan
from penstock.planner.quantities import parse_number
from penstock.planner.report import Report, make_report
from penstock.planner.text import render_section, render_text
from penstock.planner.toml import write_inputs

_MAX_FILE_BYTES: Final = 1_000_000
_MAX_SECONDS: Final = 3600
_OF_ONE_TOPIC: Final = ("rate", "partitions", "kept")
_GROWTH: Final = fields.Field(
    "growth", parse_number, 0, 1000, "how often the load", "2", above_low=True
)


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "penstock plan --rate 50k/s --message 1KB --retention 7d --groups 3",
        "penstock plan --file load.toml --html plan.html",
        "penstock plan --from 127.0.0.1:9092 --seconds 30 --growth 2",
        "penstock plan --rate 5000 --brokers 3        (are three enough?)",
        "penstock plan --calibrate --data /var/lib/penstock --out here.toml",
        "penstock plan --example 001 --print-inputs   (a file to begin from)",
    )
    _add_sources(parser)
    load = parser.add_argument_group("load of every topic")
    for field in fields.TOPIC:
        _add(load, field)
    cluster = parser.add_argument_group("cluster")
    for field in fields.CLUSTER:
        _add(cluster, field)
    cluster.add_argument(
        "--rack-aware",
        action=BooleanOptionalAction,
        default=None,
        help="consumers read in their own zone (default: yes)",
    )
    cluster.add_argument(
        "--machine", metavar="NAME", help="a machine of the file (default: the cheapest)"
    )
    _add_outputs(parser)
    parser.set_defaults(run=run)


def _add_sources(parser: ArgumentParser) -> None:
    sources = parser.add_argument_group("where the load comes from, besides the flags below")
    sources.add_argument(
        "--file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="TOML with topics, machines, prices; repeatable: later ones win, flags win over all",
    )
    start = sources.add_mutually_exclusive_group()
    start.add_argument(
        "--from", dest="bootstrap", metavar="HOST:PORT", help="measure a running cluster"
    )
    start.add_argument("--example", choices=EXAMPLES, help="a worked example, with corrections")
    start.add_argument(
        "--calibrate", action="store_true", help="measure this machine, and write a file for --file"
    )
    sources.add_argument(
        "--seconds", type=count, default=5, metavar="N", help="how long to measure (default 5)"
    )
    sources.add_argument(
        "--data",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the disk that --calibrate measures",
    )
    sources.add_argument(
        "--out", type=Path, metavar="FILE", help="what --calibrate writes (default: to stdout)"
    )


def _add_outputs(parser: ArgumentParser) -> None:
    outputs = parser.add_argument_group("output (default: tables of 80 columns)")
    outputs.add_argument(_GROWTH.flag, metavar="N", help="multiply all rates, for example by 2")
    formats = outputs.add_mutually_exclusive_group()
    add_json(formats)  # type: ignore[arg-type]  # a group takes arguments as a parser does
    formats.add_argument("--markdown", action="store_true", help="print Markdown")
    formats.add_argument(
        "--print-inputs", action="store_true", help="print the inputs as TOML, for --file"
    )
    outputs.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots")


def _add(group: Any, field: fields.Field) -> None:
    names = [field.flag, "-r"] if field.name == "replication_factor" else [field.flag]
    meaning = field.meaning.replace("%", "%%")
    sample = field.sample.replace("%", "%%")
    group.add_argument(
        *names, dest=field.name, metavar="X", default=SUPPRESS, help=f"{meaning}, such as {sample}"
    )


def run(arguments: Namespace) -> int:
    if arguments.seconds > _MAX_SECONDS:
        raise UsageError(f"--seconds: at most {_MAX_SECONDS}, not {arguments.seconds}")
    if arguments.out and not arguments.calibrate:
        raise UsageError("--out is for --calibrate; redirect stdout, or use --html FILE")
    if arguments.html and (arguments.print_inputs or arguments.calibrate):
        raise UsageError("--html needs a plan: leave out --print-inputs and --calibrate")
    if arguments.calibrate:
        from penstock.cli.calibrate import calibrate

        return calibrate(arguments.data, arguments.out, arguments.seconds)
    try:
        inputs = read_inputs(arguments)
        if arguments.print_inputs:
            Output().line(write_inputs(inputs).rstrip("\n"))
            return 0
        plan = planning.make_plan(inputs)
        _print(arguments, plan)
    except PlanError as error:
        raise UsageError(str(error)) from None
    return 0 if plan.size.fits else 1


def read_inputs(arguments: Namespace) -> Inputs:
    """Begin with an example, a cluster or defaults; then apply the files, then the flags."""
    inputs = _start(arguments)
    for path in arguments.file:
        document = _load(path)
        if "topic" in document and arguments.bootstrap:
            raise UsageError(f"{path}: topics come from the file or from --from, not from both")
        inputs = merge(inputs, document, str(path))
    inputs = _with_flags(inputs, arguments)
    if arguments.growth is not None:
        inputs = grow(inputs, _GROWTH.read(arguments.growth, _GROWTH.flag))
    return inputs


def _start(arguments: Namespace) -> Inputs:
    if arguments.example:
        return EXAMPLES[arguments.example].inputs
    if arguments.bootstrap:
        from penstock.cli.plan_cluster import measured_inputs

        return measured_inputs(arguments.bootstrap, arguments.seconds)
    return Inputs((Topic(),))


def _load(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{path}: larger than {_MAX_FILE_BYTES:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except (
        ValueError,
        RecursionError,
    ) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise UsageError(f"{path}: not TOML: {error}") from None


def _with_flags(inputs: Inputs, arguments: Namespace) -> Inputs:
    given = vars(arguments)
    topic = _values(given, fields.TOPIC)
    several = [name for name in _OF_ONE_TOPIC if name in topic]
    if several and len(inputs.topics) > 1:
        flag = "--" + several[0]
        raise UsageError(
            f"{flag}: there are {len(inputs.topics)} topics; give it in a file, or use --growth"
        )
    if "message" in topic:
        topic["framed"] = True
    elif "compression" in topic and not all(known.framed for known in inputs.topics):
        raise UsageError(
            "--compression: measured sizes are compressed already; give --message as well"
        )
    if topic:
        inputs = planning.with_topics(inputs, **topic)
    cluster = _values(given, fields.CLUSTER)
    if arguments.rack_aware is not None:
        cluster["rack_aware"] = arguments.rack_aware
    inputs = replace(inputs, cluster=replace(inputs.cluster, **cluster))
    if arguments.machine:
        inputs = replace(inputs, machine_name=arguments.machine)
    return inputs


def _values(given: Mapping[str, Any], known: Sequence[fields.Field]) -> dict[str, Any]:
    return {
        field.name: field.read(given[field.name], field.flag)
        for field in known
        if field.name in given
    }


def _print(arguments: Namespace, plan: Plan) -> None:
    alternatives = cheaper(plan)
    machines = planning.compare_machines(plan.inputs)
    report = make_report(plan, alternatives, machines)
    checks = check_section(arguments.example) if arguments.example else None
    if arguments.html:
        page = render_html(plan, report, alternatives, growth_curve(plan))
        arguments.html.write_text(page, encoding="utf-8")
        note(f"wrote {arguments.html}")
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(_facts(arguments, plan, alternatives, machines, report))
    elif arguments.markdown:
        output.line(render_markdown(report).rstrip("\n"))
        if checks:
            output.line("\n" + markdown_section(checks))
    else:
        output.line(render_text(report).rstrip("\n"))
        if checks:
            output.line("\n" + render_section(checks).rstrip("\n"))


def _facts(
    arguments: Namespace, plan: Plan, alternatives: Any, machines: list[Plan], report: Report
) -> dict[str, Any]:
    facts = plan_facts(plan, alternatives, machines, report)
    if arguments.example:
        rows = check_section(arguments.example).rows
        facts["checks"] = [dict(zip(("says", "right", "why"), row, strict=True)) for row in rows]
    return facts
