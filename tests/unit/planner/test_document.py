"""The file: every key is read and checked, unknown ones name the nearest, and what is written is read again."""

import tomllib
from dataclasses import replace

import pytest

from penstock.planner.document import merge
from penstock.planner.examples import EXAMPLES
from penstock.planner.inputs import Cluster, Inputs, Machine, PlanError, Topic
from penstock.planner.planning import make_plan
from penstock.planner.toml import write_inputs

MACHINE = """
[machines.big]
cores = 32
memory = "128GB"
network = "25Gbit/s"
disk_write = "1GB/s"
disk_read = "2GB/s"
disk = "16TB"
price_month = 900
"""


def read(text: str) -> Inputs:
    return merge(Inputs((Topic(),)), tomllib.loads(text), "load.toml")


def test_a_file_is_read() -> None:
    found = read(
        """
machine = "big"
[[topic]]
name = "orders"
rate = "1M/min"
retention = "1d"
groups = 4
[[topic]]
rate = 10
kept = "1GB"
[cluster]
zones = 3
rack_aware = false
[prices]
currency = "EUR "
disk_gb_month = 0.2
[limits]
cpu = "50%"
[cpu]
append = 0.5
"""
        + MACHINE
    )
    orders, other = found.topics
    assert (orders.name, orders.groups, orders.retention) == ("orders", 4, 86_400)
    assert orders.rate == pytest.approx(1e6 / 60)
    assert (other.name, other.kept) == ("topic 2", 1e9)
    assert found.cluster == Cluster(zones=3, rack_aware=False)
    assert found.machines == {"big": Machine(32, 128e9, 25e9 / 8, 1e9, 2e9, 16e12, 900)}
    assert (found.machine_name, found.own_prices) == ("big", True)
    assert (found.prices.currency, found.prices.disk_gb_month) == ("EUR ", 0.2)
    assert (found.limits.cpu, found.cpu.append) == (0.5, 0.5)
    assert make_plan(found).size.machines > 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topics = 1", "load.toml: topics: unknown key (did you mean topic?)"),
        ("xyzzy = 1", "load.toml: xyzzy: unknown key (known: topic, cluster, "),
        ("[[topic]]\nretension = '7d'", "load.toml: topic 1: retension: unknown key (did you mean retention?)"),
        ("[[topic]]\nrate = -1", "load.toml: topic 1: rate: expected at least 0 and at most 1 T, not -1"),
        ("[[topic]]\nrate = nan", "load.toml: topic 1: rate: nan is not a finite number"),
        ("[[topic]]\nrate = inf", "load.toml: topic 1: rate: inf is not a finite number"),
        ("[[topic]]\nrate = true", "load.toml: topic 1: rate: expected messages a second"),
        ("[[topic]]\nrate = [1]", "load.toml: topic 1: rate: expected messages a second"),
        ("[[topic]]\nname = ''", "load.toml: topic 1: name: expected a text of 1 to 200"),
        ('[[topic]]\nname = "a\\nb"', "load.toml: topic 1: name: expected a text of 1 to 200"),
        ("[[topic]]\nname='a'\n[[topic]]\nname='a'", "load.toml: topic 2: name: there are two topics 'a'"),
        ("topic = 3", "load.toml: topic: expected tables such as [[topic]]"),
        ("topic = [3]", "load.toml: topic 1: expected a table"),
        ("topic = []", "load.toml: topic: expected tables such as [[topic]]"),
        ("[cluster]\nbrokers = 0", "load.toml: cluster: brokers: expected at least 1"),
        ("[cluster]\nrack_aware = 1", "load.toml: cluster: rack_aware: expected true or false, not 1"),
        ("[cluster]\ncold_reads = '120%'", "cold_reads: expected at least 0% and at most 100%, not 120%"),
        ("cluster = 1", "load.toml: cluster: expected a table"),
        ("machines = 1", "load.toml: machines: expected tables such as [machines.small]"),
        ("[machines.m]\ncores = 8", "load.toml: machines.m: memory is missing (memory, for example 64GB)"),
        ("machine = 1", "load.toml: machine: expected a text"),
        ("[prices]\nzone_gb = -0.02", "load.toml: prices: zone_gb: expected at least 0"),
        ("[prices]\ncurency = '$'", "load.toml: prices: curency: unknown key (did you mean currency?)"),
        ("[limits]\ncpu = 0", "load.toml: limits: cpu: expected at least 1%"),
        ("[limits]\nnetwork = 1.1", "load.toml: limits: network: expected at least 1% and at most 100%, not 1.1"),
        ("[cpu]\nappend = 0", "load.toml: cpu: append: expected more than 0"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(PlanError) as told:
        read(text)
    assert str(told.value).startswith(reason) or reason in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_written_is_read_again(name: str) -> None:
    inputs = EXAMPLES[name].inputs
    assert make_plan(read(write_inputs(inputs))).size == make_plan(inputs).size


def test_odd_names_survive_being_written() -> None:
    topic = Topic(name='a "quoted" \\ name é', rate=5, framed=False, kept=7e9, partitions=3)
    inputs = replace(
        Inputs((topic,), Cluster(brokers=4, lose=2)), machines={"my machine": Machine()}
    )
    again = read(write_inputs(inputs))
    assert again.topics == (topic,)
    assert again.machines == {"my machine": Machine()}
    assert again.cluster == inputs.cluster
