"""`penstock cluster`: the brokers, who leads what, and whether every partition is well."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.cli import balance, features, health, values
from penstock.cli.arguments import Subcommands
from penstock.cli.output import Output
from penstock.cli.session import with_pool
from penstock.client import admin, reassignments
from penstock.client.pool import Pool
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponsePartition


def configure(parser: ArgumentParser) -> None:
    commands = Subcommands(parser)
    for name, summary, run in (
        ("describe", "cluster id, controller and brokers with their load", _describe),
        ("health", "what is not well, and the remedy; exit code 1 if anything is not", health.run),
        ("leaders", "how leadership is spread over the brokers", _leaders),
    ):
        shown = f"penstock cluster {name}"
        commands.add(name, summary, run, shown, f"{shown} --json")
    balance.configure_balance(
        commands.add(
            "balance",
            "put leaders where they are preferred, then even out replicas if asked to",
            balance.run_balance,
            "penstock cluster balance",
            "penstock cluster balance --replicas --dry-run",
            "penstock cluster balance --replicas --throttle 50MB/s     (after adding a broker)",
        )
    )
    balance.configure_elect(
        commands.add(
            "elect",
            "elect preferred leaders, or, for partitions without any, unclean ones",
            balance.run_elect,
            "penstock cluster elect",
            "penstock cluster elect orders-3",
            "penstock cluster elect --unclean orders-3 --yes",
        )
    )
    features.add(commands)


def _describe(arguments: Namespace) -> None:
    async def work(pool: Pool) -> dict[str, Any]:
        cluster = await admin.describe_cluster(pool)
        brokers = [broker.node_id for broker in cluster.brokers]
        return _cluster_facts(cluster, await reassignments.disks(pool, brokers))

    facts = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
        return
    brokers = facts.pop("brokers")
    output.fields(facts)
    output.line("")
    columns = ["broker", "host", "port", "rack", "leaders", "replicas", "size"]
    rows = [[*list(row.values())[:-1], _size(row["size_bytes"])] for row in brokers]
    output.table(columns, rows)


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else values.format_size(size_bytes)


def _cluster_facts(
    cluster: MetadataResponse, disks: dict[int, reassignments.Disk]
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
                "size_bytes": sum(disks[broker.node_id].sizes_bytes.values())
                if broker.node_id in disks
                else None,
            }
            for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
        ],
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
