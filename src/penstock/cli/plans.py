"""Plans as people see them: Kafka's JSON, which its own tool reads too, and a table of what would move."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.cli import values
from penstock.cli.output import Output, counted
from penstock.client import reassignments
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import Plan, TooFewBrokers, copies
from penstock.client.reassignments import Members, Places
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition


def document(plan: Plan) -> dict[str, Any]:
    """What `kafka-reassign-partitions --reassignment-json-file` takes."""
    return {
        "version": 1,
        "partitions": [
            {"topic": at.topic, "partition": at.partition, "replicas": list(replicas)}
            for at, replicas in sorted(plan.items())
        ],
    }


def parse(text: str, source: str) -> Plan:
    """A ClientError says where it is no plan."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _no_plan(source, f"it is no JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise _no_plan(source, "it has no list of partitions")
    if content.get("version", 1) != 1:
        raise _no_plan(source, f"it is of version {content['version']}; only 1 is known")
    plan: Plan = {}
    for number, row in enumerate(content["partitions"]):
        at, replicas = _read_row(row, f"{source}, partition {number + 1} of its list")
        if at in plan:
            raise _no_plan(source, f"it names {at} twice")
        plan[at] = replicas
    return plan


def _read_row(row: object, place: str) -> tuple[TopicPartition, tuple[int, ...]]:
    match row:
        case {"topic": str(topic), "partition": int(index), "replicas": list(replicas)} if (
            replicas and all(isinstance(it, int) for it in replicas)
        ):
            if len(set(replicas)) < len(replicas):
                raise _no_plan(place, f"a broker is there twice: {replicas}")
            return TopicPartition(topic, index), tuple(replicas)
    raise _no_plan(place, "it needs a topic, a partition, and the ids of its replicas")


def _no_plan(source: str, reason: str) -> ClientError:
    return ClientError(
        f"{source} is no plan: {reason}; make one with: penstock reassign plan --out FILE",
        ErrorCode.INVALID_REQUEST,
    )


class Outlook(NamedTuple):
    """What a plan would do; sizes as of now."""

    plan: Plan
    places: Places
    sizes_bytes: dict[TopicPartition, int]

    @property
    def copied_bytes(self) -> int:
        return sum(self._bytes(at) for at in self.plan)

    @property
    def copied_replicas(self) -> int:
        return sum(copies(self.places[at].target, replicas) for at, replicas in self.plan.items())

    def _bytes(self, at: TopicPartition) -> int:
        return self.sizes_bytes.get(at, 0) * copies(self.places[at].target, self.plan[at])

    def show(self, output: Output) -> None:
        if output.as_json:
            output.document({"plan": document(self.plan), **self.facts()})
            return
        if self.plan:
            rows = [
                [str(at), self.places[at].target, replicas, values.format_size(self._bytes(at))]
                for at, replicas in sorted(self.plan.items())
            ]
            output.table(["partition", "from", "to", "to copy"], rows)
        output.line(self.sentence())

    def facts(self) -> dict[str, int]:
        return {
            "partitions": len(self.plan),
            "copied_replicas": self.copied_replicas,
            "copied_bytes": self.copied_bytes,
        }

    def sentence(self) -> str:
        if not self.plan:
            return "nothing to move"
        moved = counted(self.copied_replicas, "replica")
        if not self.copied_replicas:
            return f"{counted(len(self.plan), 'partition')} get other replicas, none is copied"
        return (
            f"{counted(len(self.plan), 'partition')} change, {moved} are copied:"
            f" {values.format_size(self.copied_bytes)}"
        )


async def outlook(pool: Pool, members: Members, places: Places, plan: Plan) -> Outlook:
    running = [node.id for node in members.running]
    disks = await reassignments.disks(pool, running, plan) if plan else {}
    sizes_bytes = {
        at: disks[places[at].leader].sizes_bytes.get(at, 0)
        for at in plan
        if places[at].leader in disks
    }
    return Outlook(plan, places, sizes_bytes)


def too_few(error: TooFewBrokers, remaining: Sequence[int], or_else: str) -> ClientError:
    """`or_else`: what helps beside another broker."""
    listed = ", ".join(map(str, remaining)) or "none"
    return ClientError(
        f"topic {error.partition.topic!r} needs {error.wanted} brokers for the replicas of a partition,"
        f" and there would be only {error.brokers} ({listed}): add a broker, or {or_else}",
        ErrorCode.INVALID_REPLICATION_FACTOR,
    )
