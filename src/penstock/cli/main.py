"""The `penstock` command. It imports only the command that was asked for; errors are one line, never a traceback."""

import importlib
import os
import re
import select
import sys
from collections.abc import Sequence
from typing import Final

from penstock import __version__
from penstock.cli.arguments import CommandError, Parser, UsageError, examples, sentence
from penstock.model.errors import BrokerError, StorageFault

COMMANDS: Final = {
    "serve": "run one broker",
    "dev": "run a cluster of brokers on this machine",
    "topic": "create, list, describe, alter, trim and delete topics",
    "produce": "send lines from stdin or files to a topic",
    "consume": "print a topic's messages",
    "group": "list, describe, reset and delete consumer groups",
    "dlq": "list, show and send back dead letters",
    "txn": "list, describe and abort transactions",
    "cluster": "describe, check and balance the cluster",
    "broker": "list brokers and their load, empty one that is to leave",
    "reassign": "plan, execute, watch and cancel moves of partitions",
    "pipeline": "move and examine messages in bulk, on Spark",
    "doctor": "check this host and the cluster, and name the remedy for each finding",
    "log": "decode segment and index files",
    "plan": "plan capacity and cost for a load, or for a running cluster",
    "bench": "compare Penstock with its peers on this machine",
}
_TRACE_VARIABLE: Final = "PENSTOCK_TRACEBACK"
_AGO: Final = re.compile(r"-\d[\d.]*[a-z]+", re.IGNORECASE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code is 0 (done), 1 (failed) or 2 (wrong usage)."""
    words = join_times_ago(sys.argv[1:] if argv is None else argv)
    try:
        arguments = build_parser(words).parse_args(words)
        status = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse: 0 after help, 2 after an error
        return stop.code if isinstance(stop.code, int) else 2
    except UsageError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _has_reader_left():
            return _leave_quietly()
        if os.environ.get(_TRACE_VARIABLE):
            raise
        return _fail(_explain(error), 1)
    except (BrokerError, StorageFault, CommandError) as error:
        return _fail(str(error), 1)
    except Exception as error:  # noqa: BLE001  # a bug of ours: still one line, with the way to more
        return _report_bug(error)
    return status


def build_parser(words: Sequence[str]) -> Parser:
    """All commands by name, so that help can list them; only the one in `words` is imported."""
    parser = Parser(
        prog="penstock",
        description="A distributed message queue that every Kafka client can use.",
        epilog=examples(
            "penstock serve",
            "penstock topic create orders -p 12",
            "echo hello | penstock produce orders",
            "penstock consume orders -n 1",
        ),
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=sentence(summary))
        if name == asked:
            importlib.import_module(f"penstock.cli.{name}").configure(command)
    return parser


def join_times_ago(words: Sequence[str]) -> list[str]:
    """`--from -2h` as `--from=-2h`: argparse would take -2h for an option."""
    joined: list[str] = []
    for word in words:
        previous = joined[-1] if joined else ""
        if _AGO.fullmatch(word) and previous.startswith("--") and "=" not in previous:
            joined[-1] = f"{previous}={word}"
        else:
            joined.append(word)
    return joined


def _explain(error: OSError) -> str:
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return f"{error.filename}: {reason}" if error.filename else reason


def _fail(message: str, status: int) -> int:
    sys.stderr.write("penstock: " + " ".join(message.split()) + "\n")
    return status


def _has_reader_left() -> bool:
    """Of stdout: a connection of ours that broke raises the same error, and is a failure."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # that nobody reads any more is always told
    return bool(poll.poll(0))


def _leave_quietly() -> int:
    """`penstock consume t | head` has all it wants: let the exit flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _report_bug(error: Exception) -> int:
    if os.environ.get(_TRACE_VARIABLE):
        raise error
    return _fail(
        f"internal error: {type(error).__name__}: {error}; "
        f"set {_TRACE_VARIABLE}=1 to see where, and please report it",
        1,
    )
