"""Results as Markdown: every row with its spread, what waited for the client, what is missing, and where we lose."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.comparison.goals import Verdict, judge
from benchmarks.comparison.ratios import Spread, ratio, spread
from benchmarks.comparison.samples import MEASURES, SHARE, Measure, Results, Sample

_BUSY_FROM: Final = 1.0  # load average
_OF_THE_LOAD: Final = ("late_ms",)  # no broker wins or loses by it
_TWINS: Final = {"megabytes_s": "messages_s", "cpu_s_million": "cpu_s_gb"}  # they lose together


def markdown(
    results: Results, titles: dict[str, str], ours: str, plots: Sequence[tuple[str, str]] = ()
) -> str:
    """The whole page. `titles` are the stages in their order; `plots` are captions and file names."""
    measured = [stage for stage in titles if results.workloads(stage)]
    parts = [
        "# Penstock and its peers\n",
        *_about(results),
        *_goals(results, ours),
        *(f"![{caption}]({name})\n" for caption, name in plots),
        *(part for stage in measured for part in _stage(results, stage, titles[stage], ours)),
        *_losses(results, measured, ours),
        *_failures(results.samples),
    ]
    return "\n".join(parts)


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def shown(found: Spread | None, digits: int) -> str:
    """The median, and from where to where."""
    if found is None:
        return ""
    if found.turns == 1:
        return number(found.median, digits)
    low, high = number(found.low, digits), number(found.high, digits)
    return f"{number(found.median, digits)} ({low} to {high})"


def _about(results: Results) -> Iterator[str]:
    yield f"{results.machine}. `{results.command}`, begun {results.begun}, load average before it {results.load_average:.1f}.\n"
    yield from (f"**{remark}**\n" for remark in results.remarks)
    if results.quick:
        yield "**A quick run: it shows that the harness works. Its figures are no result.**\n"
    if _is_busy(results):
        yield "**Other work ran on this machine. Compare nothing but ratios, and mind their spread.**\n"
    yield table(
        ("system", "version", "run with"),
        ((name, it, results.settings.get(name, "")) for name, it in results.versions.items()),
    )
    for name, reason in results.missing.items():
        yield f"- **{name} is missing**: {reason}"
    yield (
        "\nCells are medians, with the least and the most of all turns. Turns are interleaved (A B A B …); a ratio is that of "
        "two runs of the same turn, ours to theirs. *client* says that the broker used less than 90 % of its core: the load set "
        "the pace, and the broker could have done more.\n"
    )


def _goals(results: Results, ours: str, theirs: str = "kafka") -> Iterator[str]:
    yield "## Goals\n"
    yield table(
        ("goal, ratio to Apache Kafka", "limit", "measured", "worst row", ""),
        (
            (
                it.goal.title,
                f"{it.goal.sign} {it.goal.limit:g}",
                shown(it.found, 2),
                it.workload,
                _qualified(it, results),
            )
            for it in judge(results, ours, theirs)
        ),
    )


def _qualified(verdict: Verdict, results: Results) -> str:
    """A run that is no result judges nothing; one beside other work says so in every line."""
    if verdict.found is None:
        return verdict.text
    if results.quick:
        return "no verdict: a quick run"
    return verdict.text + (", on a busy machine" if _is_busy(results) else "")


def _is_busy(results: Results) -> bool:
    return results.load_average >= _BUSY_FROM


def _stage(results: Results, stage: str, title: str, ours: str) -> Iterator[str]:
    yield f"## {title}\n"
    systems, measures = results.systems(stage), results.measures(stage)
    for name in measures:
        measure = MEASURES[name]
        rows = [
            _row(results, stage, workload, name, measure, systems, ours)
            for workload in results.workloads(stage)
            if results.values(stage, workload, ours, name)
        ]
        peers = [system for system in systems if system != ours]
        if rows:
            better = "more" if measure.higher_is_better else "less"
            yield f"{measure.title}, {measure.unit} ({better} is better)\n"
            yield table(("workload", *systems, *(f"ratio to {peer}" for peer in peers)), rows)


def _row(
    results: Results,
    stage: str,
    workload: str,
    name: str,
    measure: Measure,
    systems: Sequence[str],
    ours: str,
) -> list[str]:
    by_system = {it: results.values(stage, workload, it, name) for it in systems}
    cells = [workload]
    for system, values in by_system.items():
        bound = _bound(results, stage, workload, system) if name == "messages_s" else ""
        cells.append(shown(spread(values.values()), measure.digits) + bound)
    for system, values in by_system.items():
        if system != ours:
            cells.append(shown(ratio(by_system[ours], values), 2))
    return cells


def _bound(results: Results, stage: str, workload: str, system: str) -> str:
    found = spread(results.values(stage, workload, system, SHARE).values())
    if found is None:
        return ""
    who = "client" if results.is_client_bound(stage, workload, system) else "broker"
    return f", {found.median:.0%}: {who}"


def _losses(results: Results, stages: Sequence[str], ours: str) -> Iterator[str]:
    """Everything that a peer does better than we, the worst first."""
    found = sorted(_worse(results, stages, ours), reverse=True)
    yield "## Where we lose\n"
    if not found:
        yield "Nowhere in this run.\n"
        return
    yield table(("worse by", "against", "measure", "workload"), (row[1:] for row in found))


def _worse(
    results: Results, stages: Sequence[str], ours: str
) -> Iterator[tuple[float, str, str, str, str]]:
    for stage in stages:
        measured = results.measures(stage)
        for name in measured:
            if name in _OF_THE_LOAD or _TWINS.get(name) in measured:
                continue
            measure = MEASURES[name]
            for workload in results.workloads(stage):
                mine = results.values(stage, workload, ours, name)
                for peer in results.systems(stage):
                    against = ratio(mine, results.values(stage, workload, peer, name))
                    if peer == ours or against is None or not against.median:
                        continue
                    worse = 1 / against.median if measure.higher_is_better else against.median
                    if worse > 1:
                        what = f"{measure.title}, {measure.unit}"
                        yield worse, f"{worse:.2f} times", peer, what, f"{stage}: {workload}"


def _failures(samples: Iterable[Sample]) -> Iterator[str]:
    failed = [sample for sample in samples if sample.error]
    if failed:
        yield "## Runs that failed\n"
        yield table(
            ("system", "workload", "turn", "what happened"),
            (
                (it.system, f"{it.stage}: {it.workload}", it.turn + 1, it.error.replace("|", "/"))
                for it in failed
            ),
        )
