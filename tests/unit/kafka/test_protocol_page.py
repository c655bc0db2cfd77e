"""docs/protocol.md lists the APIs and versions that the broker advertises, no more and no fewer."""

import re
from pathlib import Path

from penstock.kafka.apis import APIS

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
ROW = re.compile(r"\| ([\d, ]+) \| ([\w, ]+) \| (\d+)(?:\u2013(\d+))?[^|]* \|")


def test_the_page_lists_every_api_with_its_versions() -> None:
    listed = {}
    for keys, names, first, last in ROW.findall(PAGE.read_text("utf-8")):
        for key, name in zip(keys.split(", "), names.split(", "), strict=True):
            listed[int(key)] = (name, int(first), int(last or first))
    spoken = {key: (api.name, api.min_version, api.max_version) for key, api in APIS.items()}
    assert listed == spoken
