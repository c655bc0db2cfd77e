"""A plan as plain values for JSON. Names end in their units; shares are parts of one."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.planner.alternatives import Alternative
from penstock.planner.planning import Plan, Use
from penstock.planner.report import Report


def plan_facts(
    plan: Plan, alternatives: Sequence[Alternative], machines: Sequence[Plan], report: Report
) -> dict[str, Any]:
    size, totals = plan.size, plan.size.totals
    return {
        "fits": size.fits,
        "binds": size.binds,
        "machine": {"name": plan.machine_name, **asdict(size.machine)},
        "machines": size.machines,
        "brokers": size.brokers,
        "brokers_per_machine": size.brokers_each,
        "may_be_lost": size.lose,
        "growth_possible": plan.growth,
        "machines_needed_by_resource": dict(size.needed),
        "partitions": sum(size.partitions),
        "replicas": size.replicas,
        "load": {
            "messages_s": totals.messages,
            "payload_bytes_s": totals.payload,
            "in_average_bytes_s": totals.in_average,
            "in_peak_bytes_s": totals.in_peak,
            "written_peak_bytes_s": totals.written,
            "to_followers_peak_bytes_s": totals.followed,
            "to_groups_peak_bytes_s": totals.read,
            "kept_one_copy_bytes": totals.kept,
            "open_segments_bytes": size.open_segments,
            "disk_bytes": size.disk,
            "cpu_cores_busy": totals.cpu_cores,
        },
        "topics": _topics(plan),
        "resources_of_a_machine": {use.resource: _use(use) for use in plan.uses},
        "copy_a_machine_s": plan.rebuild_s,
        "cost": {
            "currency": plan.inputs.prices.currency,
            "example_prices": not plan.inputs.own_prices,
            "month": plan.month,
            "million_messages": plan.million,
            "month_by_part": dict(plan.cost),
        },
        "cheaper": [_alternative(other) for other in alternatives],
        "kinds_of_machines": [
            {
                "machine": other.machine_name,
                "machines": other.size.machines,
                "binds": other.size.binds,
                "month": other.month,
            }
            for other in machines
        ],
        "assumptions": list(report.assumptions),
    }


def _topics(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": load.topic.name,
            "messages_s": load.topic.rate,
            "message_in_log_bytes": load.stored,
            "in_average_bytes_s": load.in_average,
            "in_peak_bytes_s": load.in_peak,
            "kept_one_copy_bytes": load.kept,
            "disk_bytes": load.disk + load.open_segments(partitions),
            "replication_factor": load.replicas,
            "min_insync_replicas": load.topic.acknowledged_by,
            "data_survives_losses": load.replicas - 1,
            "writes_survive_losses": load.replicas - load.topic.acknowledged_by,
            "groups": load.topic.groups,
            "partitions": partitions,
        }
        for load, partitions in zip(plan.loads, plan.size.partitions, strict=True)
    ]


def _use(use: Use) -> dict[str, float]:
    return {
        "used": use.amount,
        "of": use.capacity,
        "share": use.share,
        "share_after_loss": use.share_after_loss,
        "limit": use.limit,
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    return {
        "change": other.change,
        "gives_up": other.gives_up,
        "saves_a_month": other.saving,
        "month": other.plan.month,
        "machines": other.plan.size.machines,
        "fits": other.plan.size.fits,
    }
