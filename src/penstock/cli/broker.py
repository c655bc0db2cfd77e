"""`penstock broker`: the brokers and their load, and how one leaves: its replicas first, then itself."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import Any, Final, NamedTuple

from penstock.cli import moving, plans, values
from penstock.cli.arguments import Subcommands, non_negative
from penstock.cli.output import Output, counted, note
from penstock.cli.session import with_pool
from penstock.client import cordons, reassignments
from penstock.client.errors import ClientError
from penstock.client.mover import Summary
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import Plan, TooFewBrokers, plan_leaving
from penstock.client.reassignments import Members, Places
from penstock.model.errors import ErrorCode

_ROUNDS: Final = 5  # what was under way when it was cordoned may still have been put there


def configure(parser: ArgumentParser) -> None:
    add = Subcommands(parser).add
    add(
        "list",
        "all registered brokers with what they hold, those that do not run too",
        _list,
        "penstock broker list",
        "penstock broker list --json",
    )
    leave = add(
        "decommission",
        "move every replica away from a broker, so that it can be stopped for good",
        _decommission,
        "penstock broker decommission 3 --dry-run",
        "penstock broker decommission 3 --throttle 50MB/s",
        "penstock broker decommission 3 --unregister     (once it is stopped)",
        "penstock broker decommission 3 --cancel         (it stays)",
    )
    leave.add_argument("broker", type=non_negative, metavar="N", help="its id")
    leave.add_argument("--dry-run", action="store_true", help="only show what would move")
    leave.add_argument(
        "--shrink",
        action="store_true",
        help="where too few brokers remain, let partitions have fewer replicas",
    )
    leave.add_argument(
        "--unregister", action="store_true", help="strike it off afterwards; it must be stopped"
    )
    leave.add_argument(
        "--cancel",
        action="store_true",
        help="let it stay: moves away from it are called off, and it gets new replicas again",
    )
    moving.add_speed(leave)


# list --------------------------------------------------------------------------------------------


def _list(arguments: Namespace) -> None:
    async def work(pool: Pool) -> list[dict[str, Any]]:
        members = await cordons.members(pool)
        places = await reassignments.places(pool)
        disks = await reassignments.disks(pool, [node.id for node in members.running])
        return _rows(members, places, disks)

    rows = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(rows)
        return
    columns = ["broker", "address", "rack", "state", "leaders", "replicas", "size", "free"]
    output.table(columns, [_shown(row) for row in rows])


def _rows(
    members: Members, places: Places, disks: dict[int, reassignments.Disk]
) -> list[dict[str, Any]]:
    leaders = Counter(place.leader for place in places.values())
    replicas = Counter(member for place in places.values() for member in place.replicas)
    known = {member.id for member in members.brokers}
    rows = []
    for member in members.brokers:
        disk = disks.get(member.id)
        rows.append(
            {
                "id": member.id,
                "host": member.host or None,
                "port": member.port if member.port >= 0 else None,
                "rack": member.rack,
                "state": "running" if member.is_running else "not running",
                "controller": member.id == members.controller_id,
                "cordoned": member.id in members.cordoned,
                "leaders": leaders[member.id],
                "replicas": replicas[member.id],
                "size_bytes": sum(disk.sizes_bytes.values()) if disk else None,
                "free_bytes": disk.usable_bytes if disk else None,
            }
        )
    unknown = sorted(set(replicas) - known)
    return rows + [_unregistered(broker_id, replicas[broker_id]) for broker_id in unknown]


def _unregistered(broker_id: int, replicas: int) -> dict[str, Any]:
    nothing = dict.fromkeys(("host", "port", "rack"))
    sizes = dict.fromkeys(("size_bytes", "free_bytes"))
    state = {"state": "unregistered", "controller": False, "cordoned": False}
    return {"id": broker_id, **nothing, **state, "leaders": 0, "replicas": replicas, **sizes}


def _shown(row: dict[str, Any]) -> list[object]:
    address = f"{row['host']}:{row['port']}" if row["host"] else None
    marks = [mark for mark in ("controller", "cordoned") if row[mark]]
    state = ", ".join([row["state"], *marks])
    sizes = [row["size_bytes"], row["free_bytes"]]
    return [
        *(row["id"], address, row["rack"], state, row["leaders"], row["replicas"]),
        *(None if size is None else values.format_size(size) for size in sizes),
    ]


# decommission ------------------------------------------------------------------------------------


class _Left(NamedTuple):
    """What came of it."""

    summary: Summary | None
    is_running: bool
    is_unregistered: bool
    replicas_left: int


def _decommission(arguments: Namespace) -> int:
    broker_id, output = arguments.broker, Output(as_json=arguments.json)
    if arguments.dry_run:
        outlook = with_pool(arguments.bootstrap, lambda pool: _foresee(pool, arguments))
        outlook.show(output)
        return 0
    if arguments.cancel:
        called_off = with_pool(arguments.bootstrap, lambda pool: _stay(pool, broker_id))
        return _show_stay(output, broker_id, called_off)

    async def work(pool: Pool) -> _Left:
        return await _leave(pool, arguments)

    again = f"penstock broker decommission {broker_id}"
    left = moving.resumable(arguments.bootstrap, work, again)
    return 1 if left is None else _show(output, arguments, left)


async def _foresee(pool: Pool, arguments: Namespace) -> plans.Outlook:
    members, places = await _look(pool, arguments.broker)
    return await plans.outlook(pool, members, places, _plan(members, places, arguments))


async def _stay(pool: Pool, broker_id: int) -> int:
    """How many moves were called off. What has left it already does not come back by this."""
    members, places = await _look(pool, broker_id)
    if any(member.id == broker_id for member in members.brokers):
        await cordons.uncordon(pool, broker_id)
    leaving = [at for at, place in places.items() if broker_id in place.removing]
    refused = await reassignments.move(pool, dict.fromkeys(leaving))
    for error in refused.values():
        if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:  # it has come to its end
            raise error
    return len(leaving) - len(refused)


def _show_stay(output: Output, broker_id: int, called_off: int) -> int:
    if output.as_json:
        output.document({"broker": broker_id, "called_off": called_off, "cordoned": False})
    else:
        output.line(f"broker {broker_id} stays; {counted(called_off, 'move')} called off")
    return 0


async def _look(pool: Pool, broker_id: int) -> tuple[Members, Places]:
    members = await cordons.members(pool)
    places = await reassignments.places(pool)
    registered = [member.id for member in members.brokers]
    if broker_id not in registered and not _held(places, broker_id):
        raise ClientError(
            f"there is no broker {broker_id}, only {registered}; see: penstock broker list",
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        )
    return members, places


def _held(places: Places, broker_id: int) -> int:
    return sum(broker_id in place.replicas for place in places.values())


def _plan(members: Members, places: Places, arguments: Namespace) -> Plan:
    """Moves away from it that are under way belong to it."""
    broker_id = arguments.broker
    under_way = {
        at: place.target
        for at, place in places.items()
        if broker_id in place.replicas and broker_id not in place.target
    }
    targets = {at: place.target for at, place in places.items()}
    nodes = [node for node in members.open if node.id != broker_id]
    try:
        return under_way | plan_leaving(targets, nodes, [broker_id], shrink=arguments.shrink)
    except TooFewBrokers as error:
        remedy = f"accept fewer replicas with: penstock broker decommission {broker_id} --shrink"
        raise plans.too_few(error, [node.id for node in nodes], remedy) from None


async def _leave(pool: Pool, arguments: Namespace) -> _Left:
    broker_id, total = arguments.broker, None
    members, places = await _look(pool, broker_id)
    _plan(members, places, arguments)  # what cannot be done is refused before anything is begun
    if any(member.id == broker_id for member in members.brokers):
        await cordons.cordon(pool, broker_id)
    for _ in range(_ROUNDS):
        members, places = await _look(pool, broker_id)
        plan = _plan(members, places, arguments)
        if not plan:
            break
        summary = await moving.carry_out(pool, plan, moving.options(arguments))
        total = summary if total is None else _added(total, summary)
        if summary.refused:
            break
    members, places = await _look_again(pool)
    held = _held(places, broker_id)
    is_running = any(node.id == broker_id for node in members.running)
    is_registered = any(member.id == broker_id for member in members.brokers)
    strikes = arguments.unregister and is_registered and not held and not is_running
    if strikes:
        await reassignments.unregister_broker(pool, broker_id)
    return _Left(total, is_running, strikes or not is_registered, held)


async def _look_again(pool: Pool) -> tuple[Members, Places]:
    return await reassignments.members(pool), await reassignments.places(pool)


def _added(one: Summary, other: Summary) -> Summary:
    return Summary(
        one.partitions + other.partitions,
        one.done + other.done,
        one.copied_bytes + other.copied_bytes,
        one.seconds + other.seconds,
        {**one.refused, **other.refused},
    )


def _show(output: Output, arguments: Namespace, left: _Left) -> int:
    summary = left.summary
    if output.as_json:
        shown = moving.facts(summary or Summary(0, 0, 0, 0.0, {}))
        output.document(
            {
                "broker": arguments.broker,
                **shown,
                "replicas_left": left.replicas_left,
                "running": left.is_running,
                "unregistered": left.is_unregistered,
            }
        )
    elif summary is not None:
        moving.show(output, summary)
    if not output.as_json:
        output.line(_told(arguments.broker, left))
    hint = _next(arguments, left)
    if hint:
        note(hint)
    unfinished = arguments.unregister and not left.is_unregistered
    return 1 if left.replicas_left or unfinished else 0


def _told(broker_id: int, left: _Left) -> str:
    if left.replicas_left:
        return f"broker {broker_id} still has {counted(left.replicas_left, 'replica')}"
    state = "is struck off" if left.is_unregistered else "has no replicas"
    return f"broker {broker_id} {state}"


def _next(arguments: Namespace, left: _Left) -> str:
    command = f"penstock broker decommission {arguments.broker}"
    if left.replicas_left:
        return f"try again with: {command}"
    if left.is_unregistered:
        return ""
    if left.is_running:
        return f"stop it, then strike it off with: {command} --unregister"
    return f"strike it off with: {command} --unregister"
