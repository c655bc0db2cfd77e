"""Declare a job: its options, a plan that can be shown, and a run that returns a summary.

A job is a package of `penstock.spark.jobs`. Its module `options` defines a frozen dataclass, each
field made by `option`; its module `job` defines `plan(options)`, `run(session, options, progress)`
and `JOB`. The command derives flags, TOML keys and help from the fields. The modules of a job import
pyspark only inside functions, so that help and plans work without it.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, auto
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.model.errors import BrokerError
from penstock.spark.errors import JobError, explain
from penstock.spark.progress import Progress
from penstock.spark.session import LOCAL, SessionSettings, check_pyspark, open_session

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_METADATA: Final = "option"


class Kind(Enum):
    """How a value is written. What the dataclass gets is in brackets."""

    TEXT = auto()  # [str]
    COUNT = auto()  # a whole number from 0 [int]
    SIZE = auto()  # 64MiB [int, bytes]
    DURATION = auto()  # 5m [int, ms]
    TIME = auto()  # 2026-11-15T08:00:00Z, -2h, @1731657600000 [int, ms since 1970]
    PAIR = auto()  # NAME=VALUE; in TOML, with `many`, also a table [tuple of two str]
    FLAG = auto()  # given or not [bool]


class Option(NamedTuple):
    """One field, for whoever reads flags, files or help."""

    name: str
    help: str
    kind: Kind
    metavar: str | None
    many: bool  # repeatable [tuple]
    choices: tuple[str, ...]
    is_positional: bool
    is_required: bool
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def option(
    help: str,  # as argparse calls it
    *,
    default: Any = MISSING,
    kind: Kind = Kind.TEXT,
    metavar: str | None = None,
    many: bool = False,
    choices: tuple[str, ...] = (),
    positional: bool = False,
) -> Any:
    """A field of a job's options; without a default it must be given."""
    facts = (help, kind, metavar, many, choices, positional)
    if default is MISSING and kind is Kind.FLAG:
        default = False
    return field(default=default, metadata={_METADATA: facts})


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """The declared options of a dataclass, in order."""
    found = []
    for each in fields(kind):
        text, how, metavar, many, choices, positional = each.metadata[_METADATA]
        required = each.default is MISSING
        default = None if required else each.default
        found.append(
            Option(each.name, text, how, metavar, many, choices, positional, required, default)
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What every job takes. `__post_init__` of a job may raise ValueError: wrong usage."""

    bootstrap: str = option(
        f"a broker to ask first, or several with commas (or PENSTOCK_BOOTSTRAP; default {DEFAULT_BOOTSTRAP})",
        default=DEFAULT_BOOTSTRAP,
        metavar="HOST:PORT",
    )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(JobOptions):
    """Of a job that goes on where it stopped; see checkpoint.py for whose a checkpoint is."""

    checkpoint: str = option(
        "where the job keeps how far it is; the same directory continues it", metavar="DIR"
    )


class Plan(NamedTuple):
    """What a run would do."""

    facts: Mapping[str, Any]  # JSON
    lines: tuple[str, ...]  # for people


class Summary(NamedTuple):
    """What a run did."""

    facts: Mapping[str, Any]  # JSON
    lines: tuple[str, ...]  # for people
    passed: bool = True  # False: it did its work, and found what must not be; exit code 1


O = TypeVar("O", bound=JobOptions)  # noqa: E741  # options


def no_confs(options: Any) -> Mapping[str, str]:  # noqa: ARG001  # some jobs look at them
    return {}


def always(options: Any) -> bool:  # noqa: ARG001  # some jobs look at them
    return True


@dataclass(frozen=True)
class Job(Generic[O]):
    """One row of the table of jobs."""

    name: str
    options: type[O]
    plan: Callable[[O], Plan]
    run: Callable[[Any, O, Progress], Summary]
    examples: tuple[str, ...]
    confs: Callable[[O], Mapping[str, str]] = no_confs  # what its Spark application must have
    needs_spark: Callable[[O], bool] = always  # else `run` gets None for a session


def run_job(
    job: Job[O],
    options: O,
    *,
    master: str = LOCAL,
    confs: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """In a Spark application of its own; raises JobError or ClientError, whose text is for people."""
    shown = progress or Progress()
    settings = SessionSettings(
        name=f"penstock {job.name}", master=master, confs={**job.confs(options), **(confs or {})}
    )
    with shown, explained():
        if not job.needs_spark(options):
            return job.run(None, options, shown)
        check_pyspark()
        job.plan(options)  # no broker, no such topic: better said before Spark takes its time
        with ExitStack() as opened:
            with shown.doing("starting Spark"):
                session = opened.enter_context(open_session(settings))
            opened.enter_context(_terminated_softly(shown))
            with shown.doing("reading what there is to do"), shown.or_asked():
                summary = job.run(session, options, shown)
            facts = {**summary.facts, "spark_started_in_s": round(session.started_in_s, 1)}
    return summary._replace(facts=facts)


@contextmanager
def _terminated_softly(progress: Progress) -> Iterator[None]:
    """SIGTERM, if it is handled at all, waits until nothing is half said to Spark, which would understand nothing afterwards.

    A second one is taken at once.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: Any) -> None:
        if not progress.end_soon():
            handler(number, frame)

    signal.signal(signal.SIGTERM, take)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def explained() -> Iterator[None]:
    """Whatever Spark raises becomes a JobError of one line; a bug of ours stays what it is."""
    try:
        yield
    except (JobError, BrokerError):
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "penstock"):
            raise JobError(explain(error)) from error
        raise
