"""The report says what it was made of, what is missing, what failed, and where we lose; its plots are whole."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.compare import selected, stages, write_report
from benchmarks.comparison.kafka_load import RawCase, figures_of, raw_cases, wide_cases
from benchmarks.comparison.plots import LogScale, Point, curve_plot, ratio_plot
from benchmarks.comparison.ratios import Spread
from benchmarks.comparison.samples import Results, Sample
from benchmarks.comparison.stages import FULL, QUICK
from benchmarks.comparison.tables import markdown, shown, table
from benchmarks.raw import Outcome

SLOW, FAST = RawCase("produce", 1_000, 16).name, RawCase("produce", 100, 16).name


def results() -> Results:
    rates = {("penstock", SLOW): 50.0, ("kafka", SLOW): 100.0, ("penstock", FAST): 300.0}
    rates[("kafka", FAST)] = 100.0
    samples = [
        Sample(
            "raw",
            workload,
            system,
            turn,
            {"messages_s": rate + turn, "megabytes_s": rate, "share": 0.95},
        )
        for (system, workload), rate in rates.items()
        for turn in range(2)
    ]
    samples.append(Sample("raw", SLOW, "kafka", 2, {}, "it | fell over"))
    return Results(
        machine="A machine",
        command="python -m benchmarks.compare",
        load_average=7.0,
        quick=True,
        versions={"penstock": "1", "kafka": "4.1.0"},
        missing={"nats": "apt-get is not on the PATH"},
        remarks=["Ended early."],
        samples=samples,
    )


def test_the_page_tells_everything() -> None:
    page = markdown(results(), {"raw": "Throughput"}, "penstock", [("A plot", "a.svg")])
    for expected in (
        "A machine",
        "**Ended early.**",
        "Its figures are no result",
        "Other work ran on this machine",
        "**nats is missing**: apt-get is not on the PATH",
        "| penstock | kafka | ratio to kafka |",
        "![A plot](a.svg)",
        "300 (300 to 301), 95%: broker",
        "it / fell over",
    ):
        assert expected in page


def test_a_quick_run_judges_nothing_and_a_busy_machine_is_told_in_every_verdict() -> None:
    mine = results()
    assert "no verdict: a quick run" in markdown(mine, {"raw": "T"}, "penstock")
    mine.quick = False
    assert "reached, on a busy machine" in markdown(mine, {"raw": "T"}, "penstock")
    mine.load_average = 0.2
    page = markdown(mine, {"raw": "T"}, "penstock")
    assert "| reached |" in page
    assert "busy" not in page


def test_where_we_lose_the_worst_comes_first_and_wins_are_not_listed() -> None:
    losses = markdown(results(), {"raw": "T"}, "penstock").partition("## Where we lose")[2]
    assert losses.index("1.99 times") < losses.index("Runs that failed")
    assert SLOW in losses
    assert FAST not in losses
    assert "data, MB/s" not in losses  # of messages of one size it is the same loss again


def test_cells_show_a_median_and_from_where_to_where() -> None:
    assert shown(Spread(1234.5, 1000, 2000, 3), 0) == "1,234 (1,000 to 2,000)"
    assert shown(Spread(1.0, 1.0, 1.0, 1), 2) == "1.00"
    assert shown(None, 2) == ""
    assert table(("a", "b"), [(1, 2)]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_the_report_and_its_plots_are_written(tmp_path: Path) -> None:
    page = write_report(results(), tmp_path, stages(FULL, wide=True))
    assert page.exists()
    plots = {path.name for path in tmp_path.glob("*.svg")}
    assert plots == {"ratio-throughput.svg", "curve-produce-size.svg"}
    for name in plots:
        assert_inside(tmp_path / name)
        assert f"({name})" in page.read_text()


def assert_inside(path: Path) -> None:
    """Well formed, and nothing is drawn outside."""
    root = ElementTree.parse(path).getroot()
    limits = {"x": float(root.attrib["width"]), "y": float(root.attrib["height"])}
    for element in root.iter():
        for name, value in element.attrib.items():
            axis = name.lstrip("c").rstrip("12")
            if axis in limits and name != "xmlns":
                assert 0 <= float(value) <= limits[axis], (element.tag, name, value)


def test_plots_take_names_that_are_no_markup_and_one_point_only() -> None:
    one = Spread(2.0, 2.0, 2.0, 1)
    for svg in (
        ratio_plot("a < b", [Point("x & y", one)]),
        curve_plot("t", "x", {"a": {1.0: one}}),
        ratio_plot("nothing", []),
        curve_plot("nothing", "x", {}),
    ):
        ElementTree.fromstring(svg)


def test_equal_factors_are_equal_distances() -> None:
    scale = LogScale(1.0, 100.0, 0.0, 200.0)
    assert scale.at(10.0) == pytest.approx(100.0)
    assert scale.ticks() == pytest.approx([1, 2, 5, 10, 20, 50, 100])


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*raw_cases(), *wide_cases())]
    assert len(set(names)) == len(names)
    assert "produce, 1 KB, acks=all, 16 partitions, idempotent" in names


def test_of_in_and_out_the_slower_counts_and_cpu_is_for_all_bytes() -> None:
    outcome = Outcome(2.0, 1.0, 0.1, 10, 4_000_000, 10**9, 10, 2_000_000, 10**9, 1.0)
    figures = figures_of(outcome, "in and out")
    assert figures["messages_s"] == 1_000_000
    assert figures["megabytes_s"] == 500
    assert figures["cpu_s_gb"] == 1.0
    assert figures["share"] == 0.5


def test_a_run_that_was_over_at_once_is_no_measurement() -> None:
    outcome = Outcome(0.01, 0.0, 0.1, 10, 4_000_000, 10**9, 0, 0, 0)
    with pytest.raises(ValueError, match="no measurement"):
        figures_of(outcome, "produce")


def test_only_takes_stages_by_key_and_workloads_by_words() -> None:
    everything = stages(QUICK, wide=False)
    assert [it.key for it in selected(everything, "")] == [it.key for it in everything]
    assert [it.key for it in selected(everything, "latency,start")] == ["latency", "start"]
    (raw,) = selected(everything, "zstd")
    assert raw.key == "raw"
    assert all("zstd" in it.name for it in raw.workloads)
    assert selected(everything, "no such thing") == []
