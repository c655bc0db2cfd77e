"""Print a report as Markdown."""

import re
from typing import Final

from penstock.planner.report import Report, Section

_SPECIAL: Final = re.compile(r"[\\`*_|\[\]]|<(?=\S)")


def render_markdown(report: Report, title: str = "Capacity plan") -> str:
    parts = [f"# {title}", "\n\n".join(_escaped(line) for line in report.headline)]
    parts += [markdown_section(section) for section in report.sections]
    parts.append("## Assumptions\n\n" + "\n".join(f"- {_escaped(it)}" for it in report.assumptions))
    return "\n\n".join(parts) + "\n"


def markdown_section(section: Section) -> str:
    lines = [f"## {section.title}"]
    if section.rows:
        names = [_escaped(column.removeprefix(">")) or " " for column in section.columns]
        rules = ["---:" if column.startswith(">") else "---" for column in section.columns]
        table = [names, rules, *([_escaped(cell) for cell in row] for row in section.rows)]
        lines.append("\n".join(f"| {' | '.join(cells)} |" for cells in table))
    lines += [_escaped(note) for note in section.notes]
    return "\n\n".join(lines)


def _escaped(text: str) -> str:
    """Escape what Markdown would interpret: topic and machine names come from files."""
    return _SPECIAL.sub(r"\\\g<0>", text)
