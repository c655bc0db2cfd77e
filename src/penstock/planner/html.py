"""Print a report as one HTML file with plots, for light and dark screens.

SVG and style are inline: the page loads nothing. It is well-formed XML, so any parser can check it.
"""

from typing import Final
from xml.sax.saxutils import escape

from penstock.planner.alternatives import Alternative, GrowthPoint
from penstock.planner.charts import Bar, Point, bars, curve, curve_top
from penstock.planner.planning import Plan
from penstock.planner.quantities import format_money, format_share
from penstock.planner.report import Report, Section

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5c6675; --paper: #ffffff; --rule: #d9dee6;
  --main: #3b76b8; --strong: #c2571a; --after: #b9cfe8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #9aa5b4; --paper: #14181e;
  --rule: #323a46; --main: #6ea3dc; --strong: #ee8a4a; --after: #34506f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
.lead { font-size: 1.1rem; margin: .2rem 0; } .note, figcaption, li { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; color: var(--dim); font-weight: 500; }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
.right { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .name { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .main { fill: var(--main); } svg .strong { fill: var(--strong); }
svg .after { fill: var(--after); }
svg .limit { stroke: var(--ink); stroke-width: 2; } svg .grid { stroke: var(--rule); }
svg .line { fill: none; stroke: var(--main); stroke-width: 2; } svg .dot { fill: var(--main); }
svg .dot.strong { fill: var(--strong); }
@media print { body { margin: 0; max-width: none; } }
"""


def render_html(
    plan: Plan,
    report: Report,
    alternatives: list[Alternative],
    growth: list[GrowthPoint],
    title: str = "Capacity plan",
) -> str:
    figures: dict[str, tuple[str, ...]] = {
        "What binds": (_binding(plan), _use(plan)),
        "Cost of a month (730 h)": (_cost(plan), _growth(plan, growth)),
    }
    parts = [
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">',
        '<head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        *(f'<p class="lead">{escape(line)}</p>' for line in report.headline),
    ]
    for section in report.sections:
        drawn = figures.get(section.title, ())
        if section is report.sections[-1]:
            drawn = (_savings(plan, alternatives),)
        parts.append(_section(section, [figure for figure in drawn if figure]))
    items = "".join(f"<li>{escape(line)}</li>" for line in report.assumptions)
    parts.append(f"<h2>Assumptions</h2><ul>{items}</ul></body></html>\n")
    return "\n".join(parts)


def _section(section: Section, figures: list[str]) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", *figures]
    if section.rows:
        heading = "".join(
            f"<th{_right(name)}>{escape(name.removeprefix('>'))}</th>" for name in section.columns
        )
        parts.append(f'<div class="wide"><table><thead><tr>{heading}</tr></thead><tbody>')
        for row in section.rows:
            cells = zip(section.columns, row, strict=True)
            parts.append(
                "<tr>"
                + "".join(f"<td{_right(n)}>{escape(cell)}</td>" for n, cell in cells)
                + "</tr>"
            )
        parts.append("</tbody></table></div>")
    parts += [f'<p class="note">{escape(note)}</p>' for note in section.notes]
    return "\n".join(parts)


def _right(column: str) -> str:
    return ' class="right"' if column.startswith(">") else ""


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _binding(plan: Plan) -> str:
    size = plan.size
    rows = [
        Bar(resource, machines, f"{machines:,.1f}", stands_out=resource == size.binds)
        for resource, machines in sorted(size.needed.items(), key=lambda item: -item[1])
    ]
    title = "Machines that each resource asks for"
    return _figure(bars(title, rows), f"{title}, at its limit. The longest one binds.")


def _use(plan: Plan) -> str:
    lose = plan.size.lose
    rows = [
        Bar(
            use.resource,
            use.share,
            f"{format_share(use.share)}, then {format_share(use.share_after_loss)}"
            if lose
            else format_share(use.share),
            second=use.share_after_loss,
            limit=use.limit,
            stands_out=use.resource == plan.size.binds,
        )
        for use in plan.uses
    ]
    title = "Use of a machine at the peak"
    after = f", and (light) with {lose} lost" if lose else ""
    return _figure(bars(title, rows, most=1.0), f"{title}{after}. The mark is the limit.")


def _cost(plan: Plan) -> str:
    money = plan.inputs.prices.currency
    rows = [Bar(name, amount, format_money(amount, money)) for name, amount in plan.cost.items()]
    return _figure(bars("Cost of a month by part", rows), "Cost of a month by part.")


def _growth(plan: Plan, growth: list[GrowthPoint]) -> str:
    """Draw nothing for a fixed number of brokers: its price does not follow the load."""
    money = plan.inputs.prices.currency
    points = [
        Point(
            point.factor,
            point.month,
            f"{point.factor:g}x the load: {format_money(point.month, money)} a month, "
            f"{point.machines:,} machines",
        )
        for point in growth
        if point.month is not None and point.machines is not None
    ]
    if plan.inputs.cluster.brokers or len(points) < 2:
        return ""
    top = curve_top(points)
    ticks = [format_money(share * top, money) for share in (0.0, 0.5, 1.0)]
    title = "Cost of a month when the load changes"
    svg = curve(title, points, ("times this load", "cost of a month"), 1.0, ticks)
    return _figure(svg, f"{title}. The plan is the point at 1x.")


def _savings(plan: Plan, alternatives: list[Alternative]) -> str:
    money = plan.inputs.prices.currency
    rows = [Bar("this plan", plan.month, format_money(plan.month, money), stands_out=True)]
    rows += [
        Bar(_short(other.change), other.plan.month, format_money(other.plan.month, money))
        for other in alternatives
    ]
    if len(rows) == 1:
        return ""
    return _figure(
        bars("Cost of a month with each change", rows), "Cost of a month with each change."
    )


def _short(text: str) -> str:
    """Cut a change to what fits beside a bar; the table below has all of it."""
    short = text.partition(" (")[0]
    return short if len(short) <= 24 else f"{short[:23].rstrip()}…"
