"""No setting is secret yet. The first that is must not be shown, wherever it was set."""

import pytest

from penstock.kafka import config_entries
from penstock.kafka.config_entries import Entry, Source, all_brokers_entries, broker_entries
from penstock.metadata.rules.config_changes import BrokerLayers
from penstock.model.settings import Kind, Setting

SECRET = Setting("listener.password", Kind.PASSWORD, None, "Opens the door.")


@pytest.fixture(autouse=True)
def _one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_entries, "BROKER_SETTINGS", {SECRET.name: SECRET})


def shown(entries: list[Entry]) -> list[tuple[str | None, Source, list[str | None]]]:
    return [
        (entry.value, entry.source, [synonym.value for synonym in entry.synonyms])
        for entry in entries
    ]


@pytest.mark.parametrize(
    ("layer", "source"), [(0, Source.BROKER), (1, Source.ALL_BROKERS), (2, Source.STATIC)]
)
def test_a_secret_shows_where_it_was_set_and_never_its_value(layer: int, source: Source) -> None:
    layers = BrokerLayers(*({SECRET.name: "sesame"} if at == layer else {} for at in range(3)))
    assert shown(broker_entries(layers)) == [(None, source, [None])]


def test_a_secret_of_all_brokers_is_not_shown_either() -> None:
    layers = BrokerLayers({}, {SECRET.name: "sesame"}, {})
    assert shown(all_brokers_entries(layers)) == [(None, Source.ALL_BROKERS, [None])]
