"""The worst row decides a goal; what was not measured is never called reached."""

from benchmarks.comparison.goals import GOALS, Verdict, judge
from benchmarks.comparison.samples import Results, Sample

CONSUME = "consume, 1 KB, 16 partitions"
PRODUCE = "produce, 1 KB, acks=all, 16 partitions"


def samples(
    workload: str, system: str, *values: float, measure: str = "messages_s", share: float = 1.0
) -> list[Sample]:
    return [
        Sample("raw", workload, system, turn, {measure: value, "share": share})
        for turn, value in enumerate(values)
    ]


def verdict(title: str, *found: list[Sample]) -> Verdict:
    results = Results(samples=[one for some in found for one in some])
    return next(it for it in judge(results, "penstock", "kafka") if it.goal.title == title)


PRODUCE_GOAL = "produce throughput, 1 KB, acks=all, RF 1"


def test_what_was_not_measured_is_said_so() -> None:
    assert {it.text for it in judge(Results(), "penstock", "kafka")} == {"not measured"}
    ours = samples(PRODUCE, "penstock", 100.0)
    assert verdict(PRODUCE_GOAL, ours).text == "not measured"


def test_a_goal_is_reached_or_missed_by_so_much() -> None:
    theirs = samples(PRODUCE, "kafka", 100.0, 100.0, 100.0)
    assert (
        verdict(PRODUCE_GOAL, samples(PRODUCE, "penstock", 130, 150, 140), theirs).text == "reached"
    )
    missed = verdict(PRODUCE_GOAL, samples(PRODUCE, "penstock", 60, 60, 60), theirs)
    assert missed.text == "**missed** by 50%"


def test_a_limit_within_the_spread_is_told() -> None:
    theirs = samples(PRODUCE, "kafka", 100.0, 100.0, 100.0)
    found = verdict(PRODUCE_GOAL, samples(PRODUCE, "penstock", 90, 150, 140), theirs)
    assert found.text == "reached, but the limit is within the spread"


def test_the_worst_row_decides() -> None:
    other = "produce, 1 KB, acks=all, 1 partition"
    found = verdict(
        PRODUCE_GOAL,
        samples(PRODUCE, "penstock", 200),
        samples(PRODUCE, "kafka", 100),
        samples(other, "penstock", 90),
        samples(other, "kafka", 100),
    )
    assert found.workload == other
    assert found.text.startswith("**missed**")


def test_consumers_that_wait_on_both_sides_count_as_equal() -> None:
    ours = samples(CONSUME, "penstock", 80, share=0.5)
    waiting, working = (samples(CONSUME, "kafka", 100, share=share) for share in (0.5, 0.99))
    assert verdict("consume throughput", ours, waiting).text.startswith("reached: client-bound")
    assert verdict("consume throughput", ours, working).text.startswith("**missed**")


def test_every_goal_speaks_of_a_workload_that_the_harness_has() -> None:
    from benchmarks.compare import stages
    from benchmarks.comparison.stages import FULL

    effort = FULL._replace(topics=10_000)
    names = {stage.key: [it.name for it in stage.workloads] for stage in stages(effort, wide=True)}
    for goal in GOALS:
        assert [it for it in names[goal.stage] if all(word in it for word in goal.words)], (
            goal.title
        )
