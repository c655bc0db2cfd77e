"""`penstock pipeline JOB`: bulk work on Spark. Flags win over a TOML file; both come from the job's own options."""

import argparse
import logging
import os
import signal
import threading
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from time import time_ns
from typing import Any, Final

from penstock.cli import values
from penstock.cli.arguments import (
    BOOTSTRAP_VARIABLE,
    CommandError,
    UsageError,
    add_json,
    examples,
    reader,
    sentence,
)
from penstock.cli.output import Output
from penstock.model.units import Unit, parse_quantity
from penstock.spark.errors import BadOption, JobError
from penstock.spark.job import Job, Kind, Option, Plan, options_of, run_job
from penstock.spark.jobs import JOBS, load
from penstock.spark.session import LOCAL, is_master

_MASTER: Final = "master"
_SPARK: Final = "spark"  # the table of Spark's own settings
_OWN: Final = (_MASTER, _SPARK)
_NO: Final = "--no-"


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "penstock pipeline traffic orders --picture orders.svg",
        "penstock pipeline traffic --config traffic.toml --dry-run",
    )
    commands = parser.add_subparsers(metavar="JOB", required=True)
    for name, summary in JOBS.items():
        job = load(name)
        command = commands.add_parser(
            name, help=summary, description=sentence(summary), epilog=examples(*job.examples)
        )
        for option in options_of(job.options):
            _add(command, option)
        _add_common(command)
        command.set_defaults(run=run, job=job)


def _add_common(command: ArgumentParser) -> None:
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="TOML with the same names; flags win over it, and --no-FLAG over one that it sets",
    )
    command.add_argument(
        "--master",
        metavar="URL",
        help=f"where Spark runs: spark://…, k8s://…, yarn (default {LOCAL})",
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        type=reader(values.parse_assignment),
        metavar="KEY=VALUE",
        help="a setting of Spark's; repeatable",
    )
    command.add_argument("--dry-run", action="store_true", help="show what would be done")
    add_json(command)


def _add_flag(command: ArgumentParser, option: Option, how: dict[str, Any]) -> None:
    """`--no-…` is for what a file says; nobody needs to read of it for each flag."""
    command.add_argument(option.flag, dest=option.name, action="store_const", const=True, **how)
    if not option.flag.startswith(_NO):
        undone = option.flag.replace("--", _NO, 1)
        hidden = how | {"help": argparse.SUPPRESS}
        command.add_argument(undone, dest=option.name, action="store_const", const=False, **hidden)


def _add(command: ArgumentParser, option: Option) -> None:
    """Nothing given means nothing set: the file, or the default, decides later."""
    metavar = option.metavar or option.name.upper().replace("_", "-")
    how: dict[str, Any] = {"help": option.help, "default": argparse.SUPPRESS}
    if option.kind is Kind.FLAG:
        _add_flag(command, option, how)
        return
    how |= {"metavar": metavar, "type": reader(_parser(option))}
    if option.is_positional:
        command.add_argument(option.name, nargs="*", **(how | {"default": []}))
    elif option.many:
        command.add_argument(option.flag, dest=option.name, action="append", **how)
    else:
        command.add_argument(option.flag, dest=option.name, **how)


# Values ------------------------------------------------------------------------------------------


def _parser(option: Option) -> Callable[[str], Any]:
    return _one_of(option.choices) if option.choices else _PARSERS[option.kind]


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, not {text!r}")
        return text

    return parse


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected a whole number, not {text!r}")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_quantity(text, Unit.BYTES)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


_PARSERS: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.TEXT: str,
    Kind.COUNT: _count,
    Kind.SIZE: _size,
    Kind.DURATION: values.parse_duration_ms,
    Kind.TIME: lambda text: values.parse_time_ms(text, now_ms=time_ns() // 1_000_000),
    Kind.PAIR: values.parse_assignment,
}


def from_toml(option: Option, value: Any) -> Any:
    """What a file says, as the dataclass wants it; ValueError for what makes no sense."""
    if option.kind is Kind.FLAG:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, not {value!r}")
        return value
    if not option.many:
        return _from_scalar(option, value)
    if option.kind is Kind.PAIR and isinstance(value, dict):
        return tuple((str(name), str(text)) for name, text in value.items())
    return tuple(
        _from_scalar(option, each) for each in (value if isinstance(value, list) else [value])
    )


def _from_scalar(option: Option, value: Any) -> Any:
    if isinstance(value, date):  # also a datetime: TOML has dates of its own
        value = value.isoformat()
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"@{value}" if option.kind is Kind.TIME else str(value)
    if not isinstance(value, str):
        raise ValueError(f"expected a text or a whole number, not {value!r}")
    return _parser(option)(value)


# The file ----------------------------------------------------------------------------------------


def read_file(path: Path, job: Job[Any]) -> dict[str, Any]:
    """Names at the top are for every job; a table of the job's name is for it, and wins."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise UsageError(
            f"{path}: TOML is UTF-8, and byte {error.start} (0x{wrong:02x}) is not; save the file as UTF-8"
        ) from None
    own = document.pop(job.name, {})
    if not isinstance(own, dict):
        raise UsageError(f"{path}: {job.name} is a table: [{job.name}]")
    shared = {name: value for name, value in document.items() if name not in JOBS}
    return _named(path, job, {**shared, **own})


def _named(path: Path, job: Job[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    known = {option.name: option for option in options_of(job.options)}
    found: dict[str, Any] = {}
    for spelled, value in given.items():
        name = spelled.replace("-", "_")
        if name in _OWN:
            found[name] = value
        elif name in known:
            try:
                found[name] = from_toml(known[name], value)
            except ValueError as error:
                raise UsageError(f"{path}: {spelled}: {error}") from None
        else:
            near = get_close_matches(name, [*known, *_OWN, *JOBS], n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"see: penstock pipeline {job.name} --help"
            )
            raise UsageError(f"{path}: {job.name} has no option {spelled!r}; {hint}")
    return found


# The run -----------------------------------------------------------------------------------------


def run(arguments: Namespace) -> int:
    job: Job[Any] = arguments.job
    given = read_file(arguments.config, job) if arguments.config else {}
    options = make_options(job, given, arguments)
    master, confs = spark_settings(given, arguments)
    output = Output(as_json=arguments.json)
    try:
        if arguments.dry_run:
            show(output, job.plan(options))
            return 0
        if not logging.root.handlers:  # py4j logs what we raise; without a handler Python prints it
            logging.root.addHandler(logging.NullHandler())
        with _terminated_as_interrupted():
            summary = run_job(job, options, master=master, confs=confs)
    except BadOption as error:
        raise UsageError(str(error)) from error
    except JobError as error:
        raise CommandError(str(error)) from error
    show(output, Plan(summary.facts, summary.lines))
    return 0 if summary.passed else 1


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which service managers send, ends a job as Ctrl-C does: Spark is ended, and what was done is told."""
    if threading.current_thread() is not threading.main_thread():  # no other gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(output: Output, what: Plan) -> None:
    if output.as_json:
        output.document(what.facts)
    else:
        for line in what.lines:
            output.line(line)


def make_options(job: Job[Any], given: Mapping[str, Any], arguments: Namespace) -> Any:
    """The job's options from defaults, environment, file and flags, each over the one before."""
    declared = options_of(job.options)
    flags = {
        option.name: _as_declared(option, getattr(arguments, option.name))
        for option in declared
        if getattr(arguments, option.name, []) != []
    }
    environment = os.environ.get(BOOTSTRAP_VARIABLE)
    merged = {"bootstrap": environment} if environment else {}
    merged |= {name: value for name, value in given.items() if name not in _OWN} | flags
    missing = [option for option in declared if option.is_required and option.name not in merged]
    if missing:
        names = ", ".join(
            option.metavar or option.name if option.is_positional else option.flag
            for option in missing
        )
        raise UsageError(f"{job.name} needs {names}; see: penstock pipeline {job.name} --help")
    try:
        return job.options(**merged)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _as_declared(option: Option, value: Any) -> Any:
    return tuple(value) if option.many else value


def spark_settings(given: Mapping[str, Any], arguments: Namespace) -> tuple[str, dict[str, str]]:
    """The master, and Spark's settings by name."""
    master = arguments.master or given.get(_MASTER, LOCAL)
    if not (isinstance(master, str) and is_master(master)):
        raise UsageError(
            f"expected a master such as {LOCAL}, spark://host:7077 or yarn, not {master!r}"
        )
    table = given.get(_SPARK, {})
    if not isinstance(table, dict):
        raise UsageError(f"{arguments.config}: {_SPARK} is a table of settings: [{_SPARK}]")
    return master, {**_dotted(table), **dict(arguments.conf)}


def _dotted(table: Mapping[str, Any], prefix: str = "spark.") -> dict[str, str]:
    """TOML reads `sql.shuffle.partitions = 8` as tables in tables; `spark.` may be left out."""
    found: dict[str, str] = {}
    for name, value in table.items():
        full = name if name.startswith("spark.") else f"{prefix}{name}"
        if isinstance(value, dict):
            found |= _dotted(value, f"{full}.")
        else:
            found[full] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
