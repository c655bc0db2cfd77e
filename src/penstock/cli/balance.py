"""`penstock cluster balance` and `elect`: leaders where they are preferred, replicas even; and leaders at any price."""

from argparse import ArgumentParser, Namespace
from typing import Any

from penstock.cli import moving, plans
from penstock.cli.arguments import UsageError, partition
from penstock.cli.output import Output, counted, note
from penstock.cli.session import with_pool
from penstock.client import cordons, reassignments
from penstock.client.mover import Summary
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import Plan, plan_balance
from penstock.client.reassignments import Elected, Members, Places
from penstock.model.ids import TopicPartition

_AGAIN = "penstock cluster balance --replicas"


def configure_balance(command: ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="only show what would be done")
    command.add_argument(
        "--replicas",
        action="store_true",
        help="also even out replicas and preferred leaders, by the fewest copies",
    )
    moving.add_speed(command)


def configure_elect(command: ArgumentParser) -> None:
    command.add_argument(
        "partitions", nargs="*", type=partition, metavar="TOPIC-N", help="which (default: all)"
    )
    command.add_argument(
        "--unclean",
        action="store_true",
        help="for partitions without a leader: any replica that runs, even if it lacks messages",
    )
    command.add_argument(
        "--yes", action="store_true", help="with --unclean: messages may be lost, and that is fine"
    )


# balance -----------------------------------------------------------------------------------------


def run_balance(arguments: Namespace) -> int:
    output = Output(as_json=arguments.json)
    if arguments.dry_run:
        with_pool(arguments.bootstrap, lambda pool: _foresee(pool, arguments, output))
        return 0

    async def work(pool: Pool) -> tuple[list[TopicPartition], Summary | None]:
        elected = set((await _prefer(pool)).done)
        if not arguments.replicas:
            return sorted(elected), None
        members, places = await _look(pool)
        plan = {**_under_way(places), **_plan(members, places)}
        summary = await moving.carry_out(pool, plan, moving.options(arguments))
        elected.update((await _prefer(pool)).done)
        return sorted(elected), summary

    done = moving.resumable(arguments.bootstrap, work, _AGAIN)
    return 1 if done is None else _show(output, *done)


async def _look(pool: Pool) -> tuple[Members, Places]:
    return await cordons.members(pool), await reassignments.places(pool)


def _plan(members: Members, places: Places) -> Plan:
    return plan_balance({at: place.target for at, place in places.items()}, members.open)


def _under_way(places: Places) -> Plan:
    """Waited for too: leaders are evened out when all is in its place."""
    return {at: place.target for at, place in places.items() if place.is_moving}


async def _prefer(pool: Pool) -> Elected:
    return await reassignments.elect_leaders(pool, None)


async def _foresee(pool: Pool, arguments: Namespace, output: Output) -> None:
    members, places = await _look(pool)
    running = {node.id for node in members.running}
    leaders = [
        [str(at), place.leader, place.replicas[0]]
        for at, place in places.items()
        if place.leader != place.replicas[0]
        and place.replicas[0] in place.isr
        and place.replicas[0] in running
    ]
    plan = _plan(members, places) if arguments.replicas else {}
    outlook = await plans.outlook(pool, members, places, plan)
    if output.as_json:
        elections = [{"partition": at, "from": old, "to": new} for at, old, new in leaders]
        shown = {"plan": plans.document(plan), **outlook.facts()}
        output.document({"leaders": elections, **(shown if arguments.replicas else {})})
        return
    if leaders:
        output.table(["partition", "led by", "prefers"], leaders)
    output.line(f"{counted(len(leaders), 'leader')} would change")
    if arguments.replicas:
        outlook.show(output)


def _show(output: Output, elected: list[TopicPartition], summary: Summary | None) -> int:
    if output.as_json:
        shown: dict[str, Any] = {"leaders": [str(at) for at in elected]}
        if summary is not None:
            shown |= moving.facts(summary)
        output.document(shown)
        return 1 if summary is not None and summary.refused else 0
    output.line(f"{counted(len(elected), 'leader')} changed")
    if summary is None:
        note(f"replicas stay where they are; even them out with: {_AGAIN}")
        return 0
    return moving.show(output, summary)


# elect -------------------------------------------------------------------------------------------


def run_elect(arguments: Namespace) -> int:
    if arguments.unclean:
        _check_unclean(arguments)
    elif arguments.yes:
        raise UsageError("--yes goes with --unclean")

    async def work(pool: Pool) -> Elected:
        asked = arguments.partitions or None
        return await reassignments.elect_leaders(pool, asked, unclean=arguments.unclean)

    elected = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        refused = [
            {"partition": str(at), "error": str(error)} for at, error in elected.refused.items()
        ]
        output.document({"elected": [str(at) for at in elected.done], "refused": refused})
    else:
        output.line(f"{counted(len(elected.done), 'leader')} elected")
        for error in elected.refused.values():
            note(f"penstock: {error}")
    return 1 if elected.refused else 0


def _check_unclean(arguments: Namespace) -> None:
    if not arguments.partitions:
        raise UsageError(
            "--unclean needs the partitions, such as orders-3; see: penstock cluster health"
        )
    if not arguments.yes:
        names = " ".join(map(str, arguments.partitions))
        raise UsageError(
            "an unclean election loses the messages that the new leader lacks, also acknowledged ones,"
            " and other replicas cut theirs to match; if a broker that has them can still be started,"
            f" start it instead. To go ahead: penstock cluster elect --unclean {names} --yes"
        )
