"""Where a started broker can be reached; what its ready line says."""

from typing import NamedTuple


class Endpoints(NamedTuple):
    bootstrap: str
    http: str | None
    pid: int


def parse_ready_line(line: str) -> Endpoints | None:
    """`penstock ready broker=1 listen=… http=… data=… pid=…`; None for any other line."""
    words = line.split()
    if words[:2] != ["penstock", "ready"]:
        return None
    facts = dict(word.partition("=")[::2] for word in words[2:])
    http = facts.get("http", "off")
    return Endpoints(
        facts["listen"].split(",")[0], None if http == "off" else http, int(facts["pid"])
    )
