"""`penstock cluster features`: the levels in force, what brokers support, and the last step of an upgrade."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Final

from penstock.cli.arguments import Subcommands, UsageError
from penstock.cli.output import Output, note
from penstock.cli.session import with_pool
from penstock.client import features
from penstock.client.features import Features
from penstock.client.pool import Pool

_UPGRADE: Final = "upgrade"
_DOWNGRADE: Final = "downgrade"

Change = tuple[int, int]  # from, to


def add(commands: Subcommands) -> None:
    _configure(
        commands.add(
            "features",
            "show the levels of features, raise them after an upgrade, or lower them",
            run,
            "penstock cluster features",
            "penstock cluster features upgrade --dry-run",
            "penstock cluster features upgrade                  (when all brokers are new)",
            "penstock cluster features upgrade --to group.version=1",
            "penstock cluster features downgrade --to transaction.version=1",
        )
    )


def _configure(command: ArgumentParser) -> None:
    command.add_argument(
        "action", nargs="?", choices=(_UPGRADE, _DOWNGRADE), help="(default: show the levels)"
    )
    command.add_argument(
        "--to",
        action="append",
        default=[],
        type=_level,
        metavar="FEATURE=LEVEL",
        help="which level; repeatable (upgrade's default: the highest that all brokers support)",
    )
    command.add_argument(
        "--unsafe",
        action="store_true",
        help="with downgrade: also to where brokers cannot read all that was stored",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only show and check what would be changed"
    )


def _level(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not (name and equals and level.isascii() and level.isdigit() and int(level) < 1 << 15):
        raise ArgumentTypeError(f"expected a level such as group.version=1, not {text!r}")
    return name, int(level)


def run(arguments: Namespace) -> int:
    _check(arguments)
    output = Output(as_json=arguments.json)
    if arguments.action is None:
        _show(output, with_pool(arguments.bootstrap, features.describe))
        return 0

    async def work(pool: Pool) -> dict[str, Change]:
        found = await features.describe(pool)
        changes = _changes(found, arguments)
        levels = {name: new for name, (_, new) in changes.items()}
        if levels:
            kind = _kind(arguments)
            await features.update(pool, levels, kind, validate_only=arguments.dry_run)
        return changes

    _report(output, with_pool(arguments.bootstrap, work), is_done=not arguments.dry_run)
    return 0


def _check(arguments: Namespace) -> None:
    if arguments.action is None and (arguments.to or arguments.dry_run):
        raise UsageError("--to and --dry-run go with upgrade or downgrade")
    if arguments.unsafe and arguments.action != _DOWNGRADE:
        raise UsageError("--unsafe goes with downgrade")
    if arguments.action == _DOWNGRADE and not arguments.to:
        raise UsageError("downgrade needs --to, such as --to transaction.version=1")


def _kind(arguments: Namespace) -> int:
    if arguments.action == _UPGRADE:
        return features.UPGRADE
    return features.UNSAFE_DOWNGRADE if arguments.unsafe else features.SAFE_DOWNGRADE


def _changes(found: Features, arguments: Namespace) -> dict[str, Change]:
    """Without --to all that can be raised; a level that is asked for and in force is no change."""
    wanted = dict(arguments.to) or {name: found.highest(name) for name in found.names}
    changes = {name: (found.levels.get(name, 0), level) for name, level in wanted.items()}
    if arguments.to:
        return {name: change for name, change in changes.items() if change[0] != change[1]}
    return {name: change for name, change in changes.items() if change[1] > change[0]}


def _show(output: Output, found: Features) -> None:
    rows = [
        {
            "feature": name,
            "level": found.levels.get(name, 0),
            "highest": found.highest(name),
            "brokers": {str(it): ranges.get(name) for it, ranges in found.supported.items()},
        }
        for name in found.names
    ]
    if output.as_json:
        output.document({"epoch": found.epoch, "features": rows})
        return
    columns = ["feature", "level", "highest", *(f"broker {it}" for it in found.supported)]
    output.table(
        columns,
        [
            [
                name,
                found.levels.get(name, 0),
                found.highest(name),
                *(str(ranges.get(name, "-")) for ranges in found.supported.values()),
            ]
            for name in found.names
        ],
    )
    if any(found.highest(name) > found.levels.get(name, 0) for name in found.names):
        note("all brokers that run support more: penstock cluster features upgrade --dry-run")


def _report(output: Output, changes: Mapping[str, Change], *, is_done: bool) -> None:
    if output.as_json:
        rows = [{"feature": it, "from": old, "to": new} for it, (old, new) in changes.items()]
        output.document({"changes": rows, "done": is_done})
        return
    for name, (old, new) in changes.items():
        output.line(f"{name} {'from' if is_done else 'would go from'} {old} to {new}")
    if not changes:
        output.line("nothing to change")
