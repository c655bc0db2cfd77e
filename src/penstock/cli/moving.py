"""A plan is carried out before one's eyes: a line that is rewritten on a terminal, plain lines elsewhere."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TextIO, TypeVar

from penstock.cli import values
from penstock.cli.arguments import count
from penstock.cli.output import Output, counted, note
from penstock.cli.session import with_pool
from penstock.client.errors import ClientError
from penstock.client.mover import DEFAULT_PER_BROKER, Mover, Options, Progress, Summary
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import Plan
from penstock.model.units import Unit, parse_quantity

_PLAIN_EVERY_S: Final = 5.0
_TO_THE_END: Final = "\x1b[K"  # clears what is left of a longer line
T = TypeVar("T")


def add_speed(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--throttle",
        type=rate,
        metavar="RATE",
        help="the most that a broker sends or receives for moves, such as 50MB/s;"
        " the setting is removed at the end (default: what is in force)",
    )
    parser.add_argument(
        "--concurrent",
        type=count,
        default=DEFAULT_PER_BROKER,
        metavar="N",
        help=f"moves at once for each broker (default {DEFAULT_PER_BROKER})",
    )


def rate(text: str) -> int:
    """`50MB/s`, `50MB`, or bytes a second."""
    try:
        bytes_per_s = parse_quantity(text.lower().removesuffix("/s"), Unit.BYTES)
    except ValueError:
        bytes_per_s = 0
    if bytes_per_s < 1:
        raise ArgumentTypeError(f"expected a rate such as 50MB/s or 512KiB/s, not {text!r}")
    return bytes_per_s


def options(arguments: Namespace) -> Options:
    return Options(arguments.concurrent, arguments.throttle)


class ProgressLine:
    """Where a plan stands, on stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._rewrites = self._stream.isatty()
        self._told = ""
        self._told_s = -_PLAIN_EVERY_S
        self._stalled: tuple[int, ...] = ()

    def tell(self, progress: Progress) -> None:
        self._tell_stalled(progress.stalled_on)
        text = sentence(progress)
        if self._rewrites:
            self._stream.write(f"\r{text}{_TO_THE_END}")
            self._stream.flush()
        elif text != self._told and monotonic() - self._told_s >= _PLAIN_EVERY_S:
            self._stream.write(text + "\n")
            self._told_s = monotonic()
        self._told = text

    def end(self) -> None:
        if self._rewrites and self._told:
            self._stream.write(f"\r{_TO_THE_END}")

    def _tell_stalled(self, stalled: tuple[int, ...]) -> None:
        new = [broker_id for broker_id in stalled if broker_id not in self._stalled]
        self._stalled = stalled
        if new:
            self.end()
            names = ", ".join(map(str, new))
            self._stream.write(
                f"moves wait for broker {names}, which does not run: start it,"
                " or call them off with: penstock reassign cancel\n"
            )


def sentence(progress: Progress) -> str:
    parts = [f"{progress.done} of {counted(progress.partitions, 'partition')} done"]
    if progress.moving:
        parts.append(f"{progress.moving} moving")
    if progress.total_bytes:
        copied, total = progress.copied_bytes, progress.total_bytes
        parts.append(f"{values.format_size(copied)} of {values.format_size(total)}")
    if progress.bytes_per_s:
        parts.append(f"{values.format_size(round(progress.bytes_per_s))}/s")
    if progress.left_s is not None and progress.done < progress.partitions:
        parts.append(f"about {_duration(progress.left_s)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


async def carry_out(pool: Pool, plan: Plan, chosen: Options) -> Summary:
    line = ProgressLine()
    try:
        return await Mover(pool, plan, chosen, line.tell).run()
    finally:
        line.end()


def resumable(bootstrap: str, work: Callable[[Pool], Awaitable[T]], again: str) -> T | None:
    """What `work` returns; None when it was interrupted, or the cluster lost. Then it says how to go on."""
    hint = (
        f"what was begun goes on by itself (see: penstock reassign status); go on with: {again},"
        " or call it off with: penstock reassign cancel"
    )
    try:
        return with_pool(bootstrap, work)
    except KeyboardInterrupt:
        note(f"penstock: stopped; {hint}")
        return None
    except ClientError as error:
        if not error.is_retriable:
            raise
        note(f"penstock: {error}; {hint}")
        return None


def facts(summary: Summary) -> dict[str, Any]:
    return {
        "partitions": summary.partitions,
        "done": summary.done,
        "copied_bytes": summary.copied_bytes,
        "seconds": round(summary.seconds, 3),
        "refused": [
            {"partition": str(at), "error": str(error)}
            for at, error in sorted(summary.refused.items())
        ],
    }


def show(output: Output, summary: Summary) -> int:
    """The exit code: 1 when something was refused."""
    if output.as_json:
        output.document(facts(summary))
    else:
        output.line(told(summary))
        for at, error in sorted(summary.refused.items()):
            note(f"penstock: {at} was not moved: {error}")
    return 1 if summary.refused else 0


def told(summary: Summary) -> str:
    if not summary.partitions and not summary.refused:
        return "nothing to move: every partition is where the plan wants it"
    size = values.format_size(summary.copied_bytes)
    return (
        f"moved {counted(summary.done, 'partition')}: {size} copied in {_duration(summary.seconds)}"
    )
