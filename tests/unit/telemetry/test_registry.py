import pytest

from penstock.telemetry.instruments import Counter
from penstock.telemetry.registry import LABEL_SETS_LIMIT, OVERFLOW, Family, Registry, SampledFamily


def test_the_same_label_values_give_the_same_instrument() -> None:
    family = Registry().counter("seen_total", "Things seen.", ["topic"])
    family.labels("a").value += 1
    family.labels("a").value += 1
    assert family.labels("a").value == 2
    assert family.labels("b").value == 0


def test_label_sets_past_the_limit_share_one_instrument_and_no_count_is_lost() -> None:
    family = Family("seen_total", "Things seen.", "counter", ["topic"], Counter, limit=3)
    for number in range(10):
        family.labels(f"topic-{number}").value += 1
    assert len(family.children) == 4
    assert family.children[(OVERFLOW,)].value == 7
    assert sum(child.value for child in family.children.values()) == 10


def test_the_usual_limit_is_the_named_one() -> None:
    family = Registry().counter("seen_total", "Things seen.", ["topic"])
    for number in range(LABEL_SETS_LIMIT + 5):
        family.labels(str(number))
    assert len(family.children) == LABEL_SETS_LIMIT + 1


def test_a_removed_label_set_starts_again_at_zero_and_makes_room() -> None:
    family = Family("seen_total", "Things seen.", "counter", ["topic"], Counter, limit=1)
    family.labels("a").value += 1
    family.remove("a")
    family.remove("never there")
    assert family.labels("b") is not family.children.get((OVERFLOW,))
    assert family.labels("b").value == 0


def test_a_wrong_number_of_labels_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="seen_total has labels"):
        Registry().counter("seen_total", "Things seen.", ["topic"]).labels("a", "b")


def test_a_name_is_registered_once() -> None:
    registry = Registry()
    registry.counter("seen_total", "Things seen.")
    with pytest.raises(ValueError, match="registered already"):
        registry.gauge("seen_total", "Things seen.")


@pytest.mark.parametrize("name", ["", "9lives", "with space", "with-dash"])
def test_a_name_that_prometheus_would_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(ValueError, match="not a metric name"):
        Registry().counter(name, "")


@pytest.mark.parametrize("label", ["le", "__name", "a-b", ""])
def test_a_label_that_prometheus_keeps_for_itself_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="not a label name"):
        Registry().counter("seen_total", "", [label])


def test_a_sampled_gauge_is_read_only_when_asked_for() -> None:
    values = [7.0, 8.0]
    registry = Registry()
    registry.gauge_from("free_bytes", "Free space.", lambda: values.pop(0))
    (family,) = registry.families()
    assert isinstance(family, SampledFamily)
    assert list(family.samples()) == [((), 7.0)]
    assert list(family.samples()) == [((), 8.0)]
