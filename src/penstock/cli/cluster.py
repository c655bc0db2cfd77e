"""`penstock cluster`: the brokers, who leads what, and whether every partition is well."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.cli import values
from penstock.cli.arguments import Subcommands
from penstock.cli.output import Output
from penstock.cli.session import with_pool
from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponsePartition


def configure(parser: ArgumentParser) -> None:
    commands = Subcommands(parser)
    for name, summary, run in (
        ("describe", "cluster id, controller and brokers with their load", _describe),
        ("health", "partitions that are not well; exit code 1 if there are any", _health),
        ("leaders", "how leadership is spread over the brokers", _leaders),
    ):
        shown = f"penstock cluster {name}"
        commands.add(name, summary, run, shown, f"{shown} --json")


def _describe(arguments: Namespace) -> None:
    async def work(pool: Pool) -> dict[str, Any]:
        cluster = await admin.describe_cluster(pool)
        return _cluster_facts(cluster, await admin.log_sizes(pool))

    facts = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
        return
    brokers = facts.pop("brokers")
    output.fields(facts)
    output.line("")
    columns = ["broker", "host", "port", "rack", "leaders", "replicas", "size"]
    rows = [[*list(row.values())[:-1], values.format_size(row["size_bytes"])] for row in brokers]
    output.table(columns, rows)


def _cluster_facts(
    cluster: MetadataResponse, sizes: dict[int, dict[TopicPartition, int]]
) -> dict[str, Any]:
    leaders = Counter(partition.leader_id for _, partition in _partitions(cluster))
    replicas = Counter(
        broker_id for _, partition in _partitions(cluster) for broker_id in partition.replica_nodes
    )
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "topics": len(cluster.topics),
        "partitions": sum(len(topic.partitions) for topic in cluster.topics),
        "brokers": [
            {
                "id": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "leaders": leaders[broker.node_id],
                "replicas": replicas[broker.node_id],
                "size_bytes": sum(sizes.get(broker.node_id, {}).values()),
            }
            for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
        ],
    }


def _health(arguments: Namespace) -> int:
    cluster = with_pool(arguments.bootstrap, admin.describe_cluster)
    problems = list(_problems(cluster))
    facts = {
        "healthy": not problems,
        "brokers": len(cluster.brokers),
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "problems": problems,
    }
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
    else:
        output.fields({**facts, "problems": len(problems)})
        if problems:
            output.line("")
            columns = ["partition", "problem", "leader", "replicas", "isr"]
            output.table(columns, [list(problem.values()) for problem in problems])
    return 1 if problems else 0


def _problems(cluster: MetadataResponse) -> Iterator[dict[str, Any]]:
    for name, partition in _partitions(cluster):
        if partition.leader_id < 0:
            problem = "no leader"
        elif partition.offline_replicas:
            problem = "offline replica"
        elif len(partition.isr_nodes) < len(partition.replica_nodes):
            problem = "under-replicated"
        else:
            continue
        yield {
            "partition": str(TopicPartition(name, partition.partition_index)),
            "problem": problem,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "replicas": partition.replica_nodes,
            "isr": partition.isr_nodes,
        }


def _leaders(arguments: Namespace) -> None:
    cluster = with_pool(arguments.bootstrap, admin.describe_cluster)
    leading = Counter(partition.leader_id for _, partition in _partitions(cluster))
    preferred = Counter(
        partition.replica_nodes[0]
        for _, partition in _partitions(cluster)
        if partition.replica_nodes
    )
    total = sum(leading.values()) or 1
    rows = [
        {
            "broker": broker.node_id,
            "leaders": leading[broker.node_id],
            "preferred": preferred[broker.node_id],
            "share_percent": round(100 * leading[broker.node_id] / total, 1),
        }
        for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
    ]
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(rows)
    else:
        output.table(
            ["broker", "leaders", "preferred", "share %"], [list(row.values()) for row in rows]
        )


def _partitions(cluster: MetadataResponse) -> Iterator[tuple[str, MetadataResponsePartition]]:
    for topic in cluster.topics:
        for partition in topic.partitions:
            yield topic.name or "", partition
