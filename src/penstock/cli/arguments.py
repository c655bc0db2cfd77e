"""How arguments are read: one-line errors with the way to more help, exit code 2, and options that every command shares."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from penstock.cli.values import parse_assignment
from penstock.model.ids import TopicPartition
from penstock.model.units import INT_MAX, LONG_MAX

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"

T = TypeVar("T")


class UsageError(Exception):
    """Arguments that are each well formed but make no sense together: exit code 2."""


class CommandError(Exception):
    """What was asked for cannot be done; the message is for people: exit code 1."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, and whose help keeps the layout of its examples."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]  # argparse's own keywords, passed on

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What is not known is told by the command that it was given to, and not by the first one of the line."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            from difflib import get_close_matches

            near = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}; see: {self.prog} --help\n")
        raise SystemExit(2)


def reader(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Lets argparse show the sentence of a parser's ValueError instead of its own."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def count(text: str) -> int:
    """A whole number of at least 1 that fits Kafka's 32 bits."""
    return _whole(text, 1)


def non_negative(text: str) -> int:
    """A whole number of at least 0 that fits Kafka's 32 bits."""
    return _whole(text, 0)


def offset(text: str) -> int:
    """A place in a log: 64 bits."""
    return _whole(text, 0, LONG_MAX)


def partition(text: str) -> TopicPartition:
    """`orders-3`."""
    topic, dash, index = text.rpartition("-")
    if not (topic and dash and index.isascii() and index.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a partition such as orders-3, not {text!r}")
    return TopicPartition(topic, int(index))


def _whole(text: str, least: int, most: int = INT_MAX) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {least} to {most}, not {text!r}"
        )
    return int(text)


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP,
        help=f"a broker to ask first, or several with commas (or {BOOTSTRAP_VARIABLE}; "
        f"default {DEFAULT_BOOTSTRAP})",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def add_properties(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-X",
        dest="properties",
        action="append",
        default=[],
        type=reader(parse_assignment),
        metavar="KEY=VALUE",
        help="a librdkafka setting; repeatable",
    )


class Subcommands:
    """The commands of a command, each with help, examples, `--bootstrap` and `--json`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        self,
        name: str,
        summary: str,
        run: Callable[[argparse.Namespace], int | None],
        *shown: str,
    ) -> argparse.ArgumentParser:
        command = self._commands.add_parser(
            name, help=summary, description=sentence(summary), epilog=examples(*shown)
        )
        command.set_defaults(run=run)
        add_bootstrap(command)
        add_json(command)
        return command


def sentence(summary: str) -> str:
    """A command's summary as its description."""
    return summary[0].upper() + summary[1:] + "."


def examples(*lines: str) -> str:
    return "\n".join(("examples:", *(f"  {line}" for line in lines)))
