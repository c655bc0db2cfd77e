"""Reports say the same in every form; text fits a terminal, the page is well-formed and loads nothing."""

import json
import re
from xml.etree import ElementTree

import pytest

from penstock.planner.alternatives import cheaper, growth_curve
from penstock.planner.charts import Bar, Point, bars, curve, curve_top
from penstock.planner.examples import EXAMPLES, MILLION, check_section
from penstock.planner.facts import plan_facts
from penstock.planner.html import render_html
from penstock.planner.inputs import Cluster, Inputs, Machine, Topic
from penstock.planner.markdown import markdown_section, render_markdown
from penstock.planner.planning import Plan, compare_machines, make_plan
from penstock.planner.report import Report, make_report
from penstock.planner.text import render_section, render_text

NASTY = Inputs(
    (
        Topic(name="<script>alert(1)</script> | `*_&", rate=5000),
        *(Topic(name=f"topic-{number}" * 8, rate=number, groups=30) for number in range(1, 30)),
        Topic(name="one copy", rate=3, replication_factor=1),
    ),
    Cluster(zones=3, rack_aware=False),
    machines={"a & b": Machine(), "<small>": Machine(disk=1e12, price_month=90)},
    notes=("measured & noted",),
)
CASES = {
    **{name: example.inputs for name, example in EXAMPLES.items()},
    "nasty": NASTY,
    "too few": Inputs((Topic(rate=500_000),), Cluster(brokers=3)),
    "one": Inputs((Topic(rate=1, replication_factor=1),)),
}


def report_of(plan: Plan) -> Report:
    return make_report(plan, cheaper(plan), compare_machines(plan.inputs))


@pytest.fixture(params=CASES)
def plan(request: pytest.FixtureRequest) -> Plan:
    return make_plan(CASES[request.param])


def test_text_fits_eighty_columns(plan: Plan) -> None:
    text = render_text(report_of(plan))
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"\bnan\b|\binf\b|None", text)


@pytest.mark.parametrize("document", EXAMPLES)
def test_corrections_fit_eighty_columns(document: str) -> None:
    assert max(map(len, render_section(check_section(document)).splitlines())) <= 80
    assert markdown_section(check_section(document)).startswith(f"## Figures of {document}")


def test_the_page_is_well_formed_and_loads_nothing(plan: Plan) -> None:
    page = render_html(plan, report_of(plan), cheaper(plan), growth_curve(plan))
    root = ElementTree.fromstring(page)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"script", "link", "img", "iframe", "object", "use", "image"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not attributes & {"href", "src", "onclick", "style"}
    assert "url(" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\"]+", page)) == {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
    }


def test_plots_stay_inside_their_frames(plan: Plan) -> None:
    page = render_html(plan, report_of(plan), cheaper(plan), growth_curve(plan))
    svgs = [e for e in ElementTree.fromstring(page).iter() if e.tag.endswith("svg")]
    assert len(svgs) >= 3
    for svg in svgs:
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        assert svg.attrib["aria-label"]
        for element in svg.iter():
            x = float(element.attrib.get("x", 0)) + float(element.attrib.get("width", 0))
            y = float(element.attrib.get("y", 0)) + float(element.attrib.get("height", 0))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_markdown_keeps_its_tables(plan: Plan) -> None:
    for block in render_markdown(report_of(plan)).split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
    assert not re.search(r"(?<!\\)<\S", render_markdown(report_of(plan)))


def test_json_is_complete_and_finite(plan: Plan) -> None:
    facts = plan_facts(plan, cheaper(plan), compare_machines(plan.inputs), report_of(plan))
    read = json.loads(json.dumps(facts, allow_nan=False))
    assert read["machines"] * read["brokers_per_machine"] == read["brokers"]
    assert read["cost"]["month"] == pytest.approx(sum(read["cost"]["month_by_part"].values()))
    assert read["load"]["disk_bytes"] == pytest.approx(
        sum(topic["disk_bytes"] for topic in read["topics"])
    )
    assert len(read["resources_of_a_machine"]) == 7


def test_the_text_says_what_matters_first() -> None:
    text = render_text(report_of(make_plan(MILLION)))
    first, second = text.splitlines()[:2]
    assert first == (
        "309 machines of the kind 'example', 1 broker each, 309 in all. Disk space binds."
    )
    assert second == "$527,459 a month, $0.201 a million messages at example prices."


def test_too_few_brokers_are_told_first() -> None:
    text = render_text(report_of(make_plan(CASES["too few"])))
    assert text.startswith(
        "3 brokers do not carry this load: disk space alone asks for 155 machines."
    )
    assert "WHAT WOULD MAKE IT FIT, OR CHEAPER" in text


def test_many_topics_are_cut_short() -> None:
    text = render_text(report_of(make_plan(NASTY)))
    assert "11 others" in text


def test_names_are_escaped() -> None:
    made = make_plan(NASTY)
    page = render_html(made, report_of(made), [], [])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_curve_has_a_round_top_above_its_points() -> None:
    for most in (0.0, 0.003, 1, 1.2, 5, 99, 4100):
        top = curve_top([Point(1, most, "")])
        assert top >= most
        assert f"{top:.1e}"[:3] in {"1.0", "1.2", "1.5", "2.0", "3.0", "4.0", "6.0", "8.0"}


def test_a_chart_of_nothing_is_drawn() -> None:
    assert ElementTree.fromstring(bars("a <title>", [Bar("none & such", 0, "0")])) is not None
    points = [Point(1, 0, "&"), Point(2, 0, "<")]
    assert ElementTree.fromstring(curve("t", points, ("x", "y"), 1, ("0", "1", "2"))) is not None
