"""Levels are shown with what brokers support, and raised to what all of them do."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from penstock.cli.main import main
from penstock.model.errors import ErrorCode
from penstock.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from penstock.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from penstock.wire.schema import Message
from tests.support.fake_broker import FakeBroker, in_a_thread

SUPPORTED = {"group.version": (0, 1), "penstock.version": (1, 1), "transaction.version": (0, 2)}


@dataclass
class Cluster:
    """Two brokers at one address."""

    levels: dict[str, int]
    address: str = ""
    asked: list[tuple[dict[str, int], set[int], bool]] = field(default_factory=list)
    refusal: str | None = None

    def run(self, *words: str) -> int:
        return main(["cluster", "features", *words, "--bootstrap", self.address])

    def tell(self, broker: FakeBroker) -> ApiVersionsResponse:
        answer = broker.api_versions()
        answer.supported_features = [
            SupportedFeatureKey(name=name, min_version=least, max_version=most)
            for name, (least, most) in SUPPORTED.items()
        ]
        answer.finalized_features_epoch = 17
        answer.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.levels.items()
        ]
        return answer

    def update(self, request: Message) -> UpdateFeaturesResponse:
        assert isinstance(request, UpdateFeaturesRequest)
        updates = request.feature_updates
        levels = {it.feature: it.max_version_level for it in updates}
        self.asked.append((levels, {it.upgrade_type for it in updates}, request.validate_only))
        if self.refusal is None:
            return UpdateFeaturesResponse(error_message=None)
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=self.refusal
        )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    fake = Cluster({"penstock.version": 1, "transaction.version": 1})
    broker = FakeBroker()

    def metadata(_: Message) -> MetadataResponse:
        host, port = broker.address
        brokers = [MetadataResponseBroker(node_id=it, host=host, port=port) for it in (1, 2)]
        return MetadataResponse(cluster_id="c", controller_id=1, brokers=brokers)

    broker.on(ApiVersionsRequest, lambda _: fake.tell(broker))
    broker.on(MetadataRequest, metadata)
    broker.on(UpdateFeaturesRequest, fake.update)
    with in_a_thread(broker) as fake.address:
        yield fake


def test_levels_are_shown_with_the_ranges_of_brokers_and_the_next_step(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run() == 0
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["FEATURE", "LEVEL", "HIGHEST", "BROKER", "1", "BROKER", "2"],
        ["group.version", "0", "1", "0", "to", "1", "0", "to", "1"],
        ["penstock.version", "1", "1", "1", "1"],
        ["transaction.version", "1", "2", "0", "to", "2", "0", "to", "2"],
    ]
    assert "penstock cluster features upgrade --dry-run" in shown.err


def test_levels_are_shown_to_machines(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run("--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["epoch"] == 17
    assert shown["features"][2] == {
        "feature": "transaction.version",
        "level": 1,
        "highest": 2,
        "brokers": {"1": [0, 2], "2": [0, 2]},
    }


def test_all_that_can_be_is_raised(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run("upgrade", "--dry-run") == 0
    assert "group.version would go from 0 to 1" in capsys.readouterr().out
    assert cluster.run("upgrade") == 0
    assert "transaction.version from 1 to 2" in capsys.readouterr().out
    wanted = {"group.version": 1, "transaction.version": 2}
    assert cluster.asked == [(wanted, {1}, True), (wanted, {1}, False)]


def test_nothing_is_asked_for_when_all_is_at_its_highest(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.levels = {name: most for name, (_, most) in SUPPORTED.items()}
    assert cluster.run("upgrade") == 0
    assert cluster.run("upgrade", "--to", "group.version=1", "--json") == 0
    assert capsys.readouterr().out.splitlines() == [
        "nothing to change",
        '{"changes": [], "done": true}',
    ]
    assert cluster.asked == []


def test_one_level_is_raised_or_lowered_safely_or_not(cluster: Cluster) -> None:
    assert cluster.run("upgrade", "--to", "transaction.version=2") == 0
    assert cluster.run("downgrade", "--to", "transaction.version=0") == 0
    assert cluster.run("downgrade", "--unsafe", "--to", "transaction.version=0") == 0
    kinds = [(levels, kinds) for levels, kinds, _ in cluster.asked]
    assert kinds == [
        ({"transaction.version": 2}, {1}),
        ({"transaction.version": 0}, {2}),
        ({"transaction.version": 0}, {3}),
    ]


def test_the_controllers_refusal_is_shown(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refusal = "transaction.version: level 2 is not supported by broker 3, which has 0 to 1"
    assert cluster.run("upgrade") == 1
    assert capsys.readouterr().err == f"penstock: {cluster.refusal}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "group.version=1"],
        ["--dry-run"],
        ["upgrade", "--unsafe"],
        ["upgrade", "--to", "group.version"],
        ["upgrade", "--to", "group.version=-1"],
        ["downgrade"],
        ["sidegrade"],
    ],
)
def test_what_makes_no_sense_is_refused(cluster: Cluster, words: list[str]) -> None:
    assert cluster.run(*words) == 2
    assert cluster.asked == []
