"""A setting that is listed is honoured or refused: what nobody reads, nobody may set."""

import re
from pathlib import Path

import penstock
from penstock.model.configs import EFFECTIVE_SETTINGS, TOPIC_SETTINGS, Setting

_NEVER_ASKED_FOR = {
    "group.consumer.min.heartbeat.interval.ms",  # bounds of other settings, checked when they are read
    "group.consumer.max.heartbeat.interval.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
}
_INHERITED = {name for topic in TOPIC_SETTINGS.values() for name in topic.synonyms}


def read_somewhere() -> set[str]:
    """Every name that the code outside `model` mentions."""
    root = Path(penstock.__file__).parent
    files = [file for file in root.rglob("*.py") if "model" not in file.relative_to(root).parts]
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


def test_every_setting_is_read_or_refused() -> None:
    read = read_somewhere()

    def has_effect(setting: Setting) -> bool:
        return setting.attribute in read or bool(setting.unsupported)

    topic = {name for name, setting in TOPIC_SETTINGS.items() if not has_effect(setting)}
    broker = {name for name, setting in EFFECTIVE_SETTINGS.items() if not has_effect(setting)}
    assert topic | (broker - _INHERITED) == _NEVER_ASKED_FOR
