"""A plan carries its load, is as small as that allows, and what it offers instead is cheaper."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.planner import sizing
from penstock.planner.alternatives import cheaper, grow, growth_curve
from penstock.planner.inputs import Cluster, Inputs, Machine, PlanError, Prices, Topic
from penstock.planner.planning import compare_machines, make_plan, with_topics, zone_crossings

SMALL = Machine(
    cores=4,
    memory=16e9,
    network=125e6,
    disk_write=100e6,
    disk_read=200e6,
    disk=1e12,
    price_month=50,
)


def inputs(cluster: Cluster | None = None, **topic: object) -> Inputs:
    values = {"rate": 10_000.0, **topic}
    return Inputs((Topic(**values),), cluster or Cluster())  # type: ignore[arg-type]  # fields of Topic


topics = st.builds(
    Topic,
    name=st.just("t"),
    rate=st.floats(0.001, 1e7),
    message=st.floats(1, 1e6),
    peak=st.floats(1, 20),
    retention=st.floats(60, 1e7),
    replication_factor=st.integers(1, 5),
    groups=st.integers(0, 20),
    members=st.integers(0, 100),
    compression=st.floats(1, 10),
    batch=st.floats(1, 1000),
    partitions=st.integers(0, 1000),
)

machines = st.builds(
    Machine,
    cores=st.integers(1, 64),
    memory=st.floats(2e9, 256e9),
    network=st.floats(1e8, 1e10),
    disk_write=st.floats(1e8, 1e10),
    disk_read=st.floats(1e8, 1e10),
    disk=st.floats(1e12, 1e15),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(topics, min_size=1, max_size=4),
    machines,
    st.builds(
        Cluster, zones=st.integers(1, 5), lose=st.integers(-1, 3), cold_reads=st.floats(0, 1)
    ),
)
def test_a_plan_carries_its_load_and_no_smaller_one_does(
    chosen: list[Topic], machine: Machine, cluster: Cluster
) -> None:
    asked = Inputs(tuple(chosen), cluster, machines={"m": machine})
    try:
        plan = make_plan(asked)
    except PlanError:  # more machines than there are limits for; see below
        assume(False)
    size = plan.size
    assert size.fits
    assert plan.growth >= 1
    for use in plan.uses:
        assert use.share <= use.share_after_loss <= use.limit + 1e-9, use
    most = max(topic.replication_factor for topic in chosen)
    assert size.machines >= max(most + size.lose, cluster.zones)
    if size.binds not in (sizing.REPLICAS, sizing.ZONES):
        spare = size.machines - size.lose - max(size.needed.values())
        assert spare < 1 + size.machines * 0.05, "a machine less would do"
    assert all(cost >= 0 for cost in plan.cost.values())
    for other in cheaper(plan):
        assert other.plan.month < plan.month
        assert other.plan.size.fits


def test_more_load_never_needs_fewer_machines() -> None:
    sizes = [make_plan(inputs(rate=10.0**power)).size.machines for power in range(7)]
    assert sizes == sorted(sizes)


def test_network_counts_groups_and_not_members() -> None:
    one = make_plan(inputs(groups=1, members=20)).size.totals
    two = make_plan(inputs(groups=2, members=1)).size.totals
    assert two.read == 2 * one.read
    assert one.read == one.in_peak


def test_the_peak_passes_and_the_average_stays() -> None:
    calm, rough = make_plan(inputs(peak=1)).size.totals, make_plan(inputs(peak=5)).size.totals
    assert rough.disk == calm.disk
    assert rough.written == 5 * calm.written


def test_open_segments_are_paid_for() -> None:
    """Many partitions keep a segment each that retention cannot delete."""
    few, many = (make_plan(inputs(partitions=count, retention=3600)) for count in (12, 1200))
    assert many.size.open_segments > 20 * few.size.open_segments
    assert any("segment.bytes" in other.change for other in cheaper(many))


def test_a_plan_of_open_segments_alone_comes_to_an_end() -> None:
    tiny = replace(SMALL, disk=4.0e9)
    with pytest.raises(PlanError, match="more than 100,000 machines"):
        make_plan(replace(inputs(rate=1e6, retention=1.0), machines={"tiny": tiny}))


def test_a_compacted_topic_is_as_large_as_it_is() -> None:
    size = make_plan(inputs(kept=5e9)).size
    assert size.totals.kept == 5e9
    assert size.open_segments == 0


def test_small_topics_do_not_get_a_partition_on_every_machine() -> None:
    chosen = (Topic(name="large", rate=1e6), Topic(name="small", rate=10, members=3))
    large, small = make_plan(Inputs(chosen)).size.partitions
    assert large % make_plan(Inputs(chosen)).size.machines == 0
    assert small == 3


def test_brokers_of_a_given_number_are_checked() -> None:
    enough = make_plan(inputs(Cluster(brokers=6), retention=86_400.0))
    assert (enough.size.machines, enough.size.brokers_each, enough.size.fits) == (6, 1, True)
    few = make_plan(inputs(Cluster(brokers=3), rate=200_000.0))
    assert not few.size.fits
    assert few.growth < 1
    mended = [other for other in cheaper(few) if other.plan.size.fits]
    assert mended == cheaper(few)[: len(mended)], "what makes it fit comes first"


def test_what_fits_is_taken_before_what_is_cheap() -> None:
    asked = inputs(Cluster(brokers=3), rate=20_000.0)
    asked = replace(asked, machines={"large": Machine(disk=30e12), "small": SMALL})
    plans = {plan.machine_name: plan for plan in compare_machines(asked)}
    assert plans["small"].month < plans["large"].month
    assert not plans["small"].size.fits
    assert make_plan(asked).machine_name == "large"


def test_what_makes_a_cluster_fit_comes_before_what_saves_more() -> None:
    """The CPU of single messages binds: batches mend that, compression only saves money."""
    asked = inputs(Cluster(brokers=3), rate=100_000.0, batch=1.0, retention=21_600.0)
    few = make_plan(asked)
    assert (few.size.fits, few.size.binds) == (False, sizing.CPU)
    found = cheaper(few)
    fits = [other.plan.size.fits for other in found]
    assert fits == sorted(fits, reverse=True)
    assert max(other.saving for other in found if not other.plan.size.fits) > min(
        other.saving for other in found if other.plan.size.fits
    )


def test_a_cluster_carries_its_growth_and_no_more() -> None:
    asked = inputs(Cluster(brokers=12), rate=10_000.0)
    room = make_plan(asked).growth
    assert room > 1
    assert make_plan(grow(asked, room * 0.999)).size.fits
    assert not make_plan(grow(asked, room * 1.01)).size.fits


def test_consumers_far_behind_need_memory() -> None:
    plan = make_plan(inputs(Cluster(lag=86_400.0), retention=3600.0))
    assert plan.size.binds == sizing.MEMORY
    assert plan.size.needed[sizing.MEMORY] > 10_000 * 1000 * 3 * 86_400 / 64e9


def test_egress_is_paid_by_the_average() -> None:
    asked = replace(inputs(peak=5.0, groups=2, framed=False), prices=Prices("$", 0, 0, 0.05))
    a_month_gb = 10_000 * 1000 * 2 * 730 * 3600 / 1e9
    assert make_plan(asked).cost["egress"] == pytest.approx(a_month_gb * 0.05)


def test_a_lost_machine_is_planned_for() -> None:
    plan = make_plan(inputs(Cluster(lose=2)))
    assert plan.size.lose == 2
    assert all(use.share_after_loss <= use.limit for use in plan.uses)
    assert make_plan(inputs(replication_factor=1)).size.lose == 0


@pytest.mark.parametrize(
    ("zones", "replicas", "groups", "rack_aware", "times"),
    [
        (1, 3, 5, True, 0),
        (3, 3, 2, True, 2 / 3 + 2),
        (3, 3, 2, False, 2 / 3 + 2 + 2 * 2 / 3),
        (2, 3, 0, True, 1 / 2 + 4 / 3),
        (3, 1, 1, True, 2 / 3 + 2 / 3),
        (3, 6, 1, True, 2 / 3 + 4),
    ],
)
def test_traffic_across_zones(
    zones: int, replicas: int, groups: int, rack_aware: bool, times: float
) -> None:
    asked = inputs(Cluster(zones=zones, rack_aware=rack_aware))
    assert zone_crossings(asked, replicas, groups) == pytest.approx(times)


def test_reading_in_the_own_zone_is_offered_where_it_saves() -> None:
    asked = inputs(Cluster(zones=3, rack_aware=False), groups=4)
    assert any("client.rack" in other.change for other in cheaper(make_plan(asked)))
    near = replace(asked, cluster=Cluster(zones=3))
    assert not any("client.rack" in other.change for other in cheaper(make_plan(near)))


def test_nothing_is_offered_that_does_not_exist() -> None:
    """Tiered storage is refused by name: a plan must not count on it."""
    words = " ".join(other.change for other in cheaper(make_plan(inputs(rate=1e6))))
    assert "tier" not in words
    assert "remote" not in words


def test_what_was_measured_is_not_compressed_again() -> None:
    plan = make_plan(inputs(framed=False))
    assert plan.size.totals.in_average == 10_000 * 1000
    assert not any("compress" in other.change for other in cheaper(plan))


def test_the_cheapest_machine_is_taken() -> None:
    asked = replace(inputs(), machines={"large": Machine(), "small": SMALL})
    plans = {plan.machine_name: plan.month for plan in compare_machines(asked)}
    best = make_plan(asked)
    assert best.month == min(plans.values())
    other = next(name for name in plans if name != best.machine_name)
    changes = [found.change for found in cheaper(make_plan(replace(asked, machine_name=other)))]
    assert f"machine {best.machine_name!r}" in changes


def test_growth_multiplies_everything() -> None:
    twice = grow(inputs(kept=4e9), 2)
    assert (twice.topics[0].rate, twice.topics[0].kept) == (20_000, 8e9)
    points = {point.factor: point.month for point in growth_curve(make_plan(inputs()))}
    assert points[1.0] == make_plan(inputs()).month
    assert (points[4.0] or 0) > (points[1.0] or 0) > (points[0.5] or 0)


def test_prices_of_zero_cost_nothing_and_break_nothing() -> None:
    free = replace(SMALL, price_month=0.0)
    asked = replace(inputs(), machines={"free": free}, prices=Prices("$", 0, 0, 0))
    plan = make_plan(asked)
    assert plan.month == plan.million == 0
    assert cheaper(plan) == []


@pytest.mark.parametrize(
    ("cluster", "topic", "reason"),
    [
        (Cluster(), {"rate": 0.0}, "no messages a second"),
        (Cluster(brokers=2), {}, "3 replicas need at least 3 brokers, and there are 2"),
        (Cluster(brokers=3, lose=3), {}, "of 3 brokers at most 2 may be lost, not 3"),
        (Cluster(brokers=3, zones=4), {}, "4 zones need a broker each"),
        (Cluster(), {"min_insync_replicas": 4}, "no write would succeed"),
        (Cluster(), {"rate": 1e12, "message": 1e9}, "more than 100,000 machines"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    cluster: Cluster, topic: dict[str, float], reason: str
) -> None:
    with pytest.raises(PlanError, match=reason) as told:
        make_plan(inputs(cluster, **topic))
    assert "\n" not in str(told.value)


def test_a_machine_too_small_for_a_broker_is_refused() -> None:
    with pytest.raises(PlanError, match="has no room for one broker"):
        make_plan(replace(inputs(), machines={"m": replace(SMALL, memory=5e8)}))


def test_an_unknown_machine_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="did you mean example"):
        make_plan(replace(inputs(), machine_name="exampel"))


def test_a_change_reaches_every_topic() -> None:
    asked = Inputs((Topic(name="a", rate=1), Topic(name="b", rate=2)))
    assert [topic.groups for topic in with_topics(asked, groups=7).topics] == [7, 7]
