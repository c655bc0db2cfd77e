import re
from inspect import signature
from pathlib import Path

from penstock.broker.metrics import BrokerMetrics
from penstock.telemetry.registry import Family, SampledFamily


def names(metrics: BrokerMetrics) -> set[str]:
    return {family.name for family in metrics.registry.families()}


def test_a_topic_keeps_its_counters_until_it_is_forgotten() -> None:
    metrics = BrokerMetrics()
    metrics.topic("orders").bytes_in.value += 10
    assert metrics.topic("orders").bytes_in.value == 10
    metrics.forget_topic("orders")
    metrics.forget_topic("orders")
    assert metrics.topic("orders").bytes_in.value == 0


def test_a_forgotten_topic_leaves_no_series_behind() -> None:
    metrics = BrokerMetrics()
    metrics.topic("orders")
    metrics.forget_topic("orders")
    for family in metrics.registry.families():
        assert not isinstance(family, Family) or ("orders",) not in family.children


def test_a_finished_request_is_counted_and_timed_in_milliseconds() -> None:
    metrics = BrokerMetrics()
    metrics.request("Produce").done(0.25)
    metrics.request("Produce").errors.value += 1
    produce = metrics.request("Produce")
    assert (produce.requests.value, produce.errors.value) == (1, 1)
    assert (produce.total_ms.count, produce.total_ms.sum) == (1, 250)


def test_a_listener_keeps_its_connection_counts() -> None:
    metrics = BrokerMetrics()
    metrics.listener("PLAINTEXT").connections.value += 1
    assert metrics.listener("PLAINTEXT").connections.value == 1
    assert metrics.listener("PLAINTEXT").refused.value == 0


def with_everything() -> BrokerMetrics:
    """Every metric that a broker registers, also those whose numbers are read only at a scrape."""
    metrics = BrokerMetrics()
    for name in dir(metrics):
        if name.startswith("read_"):
            read = getattr(metrics, name)
            read(**dict.fromkeys(signature(read).parameters, lambda: 0))
    return metrics


def test_the_manual_names_every_metric_and_no_other() -> None:
    manual = Path(__file__).parents[3] / "docs" / "operations.md"
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]*) ?\|", manual.read_text(), re.MULTILINE)
    documented = {name: labels.strip() for name, labels in rows}
    families = with_everything().registry.families()
    assert documented == {family.name: ", ".join(family.label_names) for family in families}


def test_the_names_that_dashboards_ask_for_are_there() -> None:
    metrics = with_everything()
    assert names(metrics) >= {
        "kafka_server_brokertopicmetrics_messagesin_total",
        "kafka_server_brokertopicmetrics_bytesin_total",
        "kafka_server_brokertopicmetrics_bytesout_total",
        "kafka_server_brokertopicmetrics_failedproducerequests_total",
        "kafka_server_replicamanager_partitioncount",
        "kafka_server_replicamanager_leadercount",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "kafka_network_requestmetrics_totaltimems",
        "penstock_disk_full",
        "penstock_data_directory_offline",
    }


def test_the_numbers_of_logs_are_read_at_the_scrape() -> None:
    metrics = BrokerMetrics()
    sizes = {("orders", "0"): 100.0}
    metrics.read_logs(
        size_bytes=lambda: list(sizes.items()),
        segments=lambda: (),
        start_offset=lambda: (),
        end_offset=lambda: (),
    )
    sizes[("orders", "1")] = 7.0
    (family,) = [f for f in metrics.registry.families() if f.name == "kafka_log_log_size"]
    assert isinstance(family, SampledFamily)
    assert dict(family.samples()) == sizes
