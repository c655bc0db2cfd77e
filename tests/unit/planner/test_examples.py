"""Every figure of the capacity documents that was checked, computed by the planner and not copied."""

import pytest

from penstock.planner.examples import DAILY_BILLION, EXAMPLES, MILLION, Check, checks
from penstock.planner.inputs import Cluster, Inputs
from penstock.planner.planning import Plan, make_plan, with_topics
from penstock.planner.sizing import CPU, DISK_SPACE, DISK_WRITE, NETWORK_IN

TB = 1e12
ALL = [check for document in EXAMPLES for check in checks(document)]
RIGHT = [  # document, words of the claim, the figures
    ("001", "86.4 GB a day", (86.4 * TB,)),
    ("001", "604.8 GB", (604.8 * TB, 1814.4 * TB, 2177.28 * TB, 217.728 * TB)),
    ("001", "400 MB/s", (166.667e6, 166_667, 1.66667e6, 416.667e6, 250e6)),
    ("001", "a TB", (100, 50, 20)),
    ("001", "20 brokers", (0.66667,)),
    ("001", "2 failures", (2, 1)),
    ("000", "6 TB a broker", (60.48 * TB, 181.44 * TB, 18144 * TB, 18.144 * TB, 54.432 * TB, 5443.2 * TB, 1995.84 * TB)),
    ("000", "indexes", (0.0048828,)),
    ("000", "bursts", (30e6, 10e6, 3.33333)),
    ("000", "1 M partitions", (1e9, 3, 10, 100e15, 1.8144e9)),
    ("000", "20 consumers", (10e9, 20e9)),
    ("000", "10 GB/s", (300e6,)),
    ("000", "12 cores", (84, 0.69)),
    ("000", "egress", (7776 * TB, 388_800)),
    ("000", "$0.05 a billion", (47,)),
    ("002", "$0.0001", (10, 100_000)),
    ("003", "21 TB", (21 * TB, 21.4 * TB)),
    ("003", "30 brokers", (10,)),
]  # fmt: skip
PRINTED = (
    "86.4 TB a day",
    "604.8 TB; 1,814 TB; 2,177 TB in all, 218 TB a broker of 10",
    "167 MB/s, 166,667 messages/s; 1.67 M/s for 10; the network alone: 417 MB/s (one group), 250 (three)",
    "$100, $50, $20",
    "66.7%",
    "data 2, writes with min.insync.replicas 2: 1",
    "at the peak rate 60.5, 181 TB, 18.1 PB; at the average 18.1, 54.4 TB, 5.4 PB; "
    "2.0 PB only with compression 3:1 and 10% on top",
    "0.5%",
    "30 M/s; its peak is 10 M/s (3.3 x)",
    "1 bn/s; its 3 to 10 M/s are 3 to 10 messages/s each; 100 GB each would be 100 PB; it is 1.81 GB",
    "10 GB/s for each group that reads a topic",
    "300 MB/s",
    "10 M/s over 100 is 100 k/s: 84 cores by its own costs; ours 0.7",
    "7,776 TB for one group at 3 GB/s ($388,800 at its price)",
    "$47 a billion",
    "$10,000 a billion is $10 a million: they differ by 100,000",
    "21.0 TB; 21.4 TB with framing and indexes",
    '10, if 50 MB/s is "with replication", as it says',
)


def find(document: str, words: str) -> Check:
    [found] = [check for check in checks(document) if words in check.says]
    return found


def test_there_are_eighteen_checks_and_each_is_tested() -> None:
    assert len(ALL) == len(RIGHT) == len(PRINTED) == 18
    assert {id(find(document, words)) for document, words, _ in RIGHT}


@pytest.mark.parametrize(("document", "words", "figures"), RIGHT, ids=lambda value: str(value)[:20])
def test_the_right_figure_is_computed(
    document: str, words: str, figures: tuple[float, ...]
) -> None:
    assert find(document, words).figures == pytest.approx(figures, rel=0.003)


@pytest.mark.parametrize("number", range(18))
def test_the_right_figure_is_printed(number: int) -> None:
    document, words, _ = RIGHT[number]
    assert find(document, words).right == PRINTED[number]


@pytest.fixture
def million() -> Plan:
    return make_plan(MILLION)


def test_a_million_messages_a_second_need_machines_for_their_disks(million: Plan) -> None:
    size = million.size
    assert size.totals.in_average == pytest.approx(1013e6, rel=1e-3)
    assert size.totals.disk == pytest.approx(1847 * TB, rel=1e-3)
    assert size.binds == DISK_SPACE
    needed = [size.needed[name] for name in (DISK_WRITE, NETWORK_IN, CPU, DISK_SPACE)]
    assert [-int(-machines // 1) for machines in needed] == [9, 4, 1, 308]
    assert size.machines == 309


def test_a_million_messages_cost_a_fifth_of_a_dollar_and_a_third_of_that_compressed(
    million: Plan,
) -> None:
    compressed = make_plan(with_topics(MILLION, compression=3.0))
    assert million.million == pytest.approx(0.20, rel=0.01)
    assert compressed.million == pytest.approx(0.067, rel=0.01)
    assert compressed.size.totals.disk == pytest.approx(617 * TB, rel=0.01)


def test_a_billion_messages_a_day_need_few_machines() -> None:
    plan = make_plan(Inputs(DAILY_BILLION.topics, Cluster(zones=3)))
    assert plan.size.totals.disk == pytest.approx(21.4 * TB, rel=0.003)
    assert plan.size.machines == 5
