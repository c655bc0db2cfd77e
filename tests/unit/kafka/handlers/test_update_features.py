from collections.abc import Iterator

import pytest

from penstock.broker.coordinators.shards import partition_for
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.feature_levels import LevelChange, UpgradeType
from penstock.model.errors import ErrorCode
from penstock.transactions.records import decode_value
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.support.context import BrokerContext
from tests.support.txn_session import Session, committed_values

UP, SAFE, UNSAFE = UpgradeType
TRANSACTIONS, GROUPS = "transaction.version", "group.version"
HIGHEST = {GROUPS: 1, "mirror.version": 1, "penstock.version": 1, TRANSACTIONS: 2}


@pytest.fixture(autouse=True)
def _raised_again(broker: BrokerContext) -> Iterator[None]:
    yield
    changes = [LevelChange(name, level, UP) for name, level in HIGHEST.items()]
    broker.run(broker.cluster.update_features(changes))


def request(*rows: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level, kind in rows
    ]
    return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)


def codes(response: UpdateFeaturesResponse) -> dict[str, int]:
    return {result.feature: result.error_code for result in response.results}


def told(broker: BrokerContext, version: int = 4) -> ApiVersionsResponse:
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    answer = broker.ask(asked, version)
    assert isinstance(answer, ApiVersionsResponse)
    return answer


def levels(broker: BrokerContext) -> dict[str, int]:
    answer = told(broker)
    assert all(it.min_version_level == it.max_version_level for it in answer.finalized_features)
    return {it.name: it.max_version_level for it in answer.finalized_features}


def test_a_new_cluster_tells_the_highest_levels_and_the_ranges_of_its_broker(
    broker: BrokerContext,
) -> None:
    ranges = {it.name: (it.min_version, it.max_version) for it in told(broker).supported_features}
    assert ranges == {
        GROUPS: (0, 1),
        "mirror.version": (0, 1),
        "penstock.version": (1, 1),
        TRANSACTIONS: (0, 2),
    }
    assert levels(broker) == HIGHEST
    assert [it.name for it in told(broker, 3).supported_features] == ["penstock.version"]


def test_levels_go_down_and_up_and_the_epoch_only_up(broker: BrokerContext) -> None:
    epochs = [told(broker).finalized_features_epoch]
    for version, level, kind in [(1, 1, SAFE), (1, 2, UP), (2, 0, UNSAFE), (2, 1, UP)]:
        answer = broker.ask(request((TRANSACTIONS, level, kind)), version)
        assert answer.error_code == ErrorCode.NONE
        assert codes(answer) == ({TRANSACTIONS: 0} if version < 2 else {})
        assert levels(broker).get(TRANSACTIONS, 0) == level
        epochs.append(told(broker).finalized_features_epoch)
    assert epochs == sorted(set(epochs))


def test_the_oldest_version_says_only_whether_a_downgrade_is_meant(broker: BrokerContext) -> None:
    asked = request((TRANSACTIONS, 1, UP))
    assert codes(broker.ask(asked, 0)) == {TRANSACTIONS: ErrorCode.INVALID_UPDATE_VERSION}
    asked.feature_updates[0].allow_downgrade = True
    assert codes(broker.ask(asked, 0)) == {TRANSACTIONS: ErrorCode.NONE}
    assert levels(broker)[TRANSACTIONS] == 1


@pytest.mark.parametrize("version", [0, 1])
def test_each_feature_has_its_code_and_none_is_changed_when_one_is_refused(
    broker: BrokerContext, version: int
) -> None:
    answer = broker.ask(request(("share.version", 1, UP), (TRANSACTIONS, 2, UP)), version)
    assert answer.error_code == ErrorCode.NONE
    assert codes(answer) == {
        "share.version": ErrorCode.INVALID_UPDATE_VERSION,
        TRANSACTIONS: ErrorCode.FEATURE_UPDATE_FAILED,
    }
    assert "does not know this feature" in answer.results[0].error_message
    assert levels(broker) == HIGHEST


def test_from_version_2_one_code_stands_for_all(broker: BrokerContext) -> None:
    answer = broker.ask(request((TRANSACTIONS, 1, SAFE), (GROUPS, 0, SAFE)), 2)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.startswith("group.version: ")
    assert levels(broker) == HIGHEST


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_only_checked_changes_nothing(broker: BrokerContext, version: int) -> None:
    answer = broker.ask(request((TRANSACTIONS, 1, SAFE), validate_only=True), version)
    assert answer.error_code == ErrorCode.NONE
    bad = broker.ask(request((TRANSACTIONS, 9, UP), validate_only=True), version)
    assert ErrorCode.INVALID_UPDATE_VERSION in (bad.error_code, *codes(bad).values())
    assert levels(broker) == HIGHEST


def test_a_feature_that_is_named_twice_is_refused(broker: BrokerContext) -> None:
    answer = broker.ask(request((TRANSACTIONS, 1, SAFE), (TRANSACTIONS, 2, UP)))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_who_may_not_alter_the_cluster_may_not_do_this(broker: BrokerContext) -> None:
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    answer = broker.ask(request((TRANSACTIONS, 1, SAFE)))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert levels(broker) == HIGHEST


def test_without_its_level_the_consumer_protocol_is_neither_advertised_nor_spoken(
    broker: BrokerContext,
) -> None:
    keys = {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
    assert keys <= {it.api_key for it in told(broker).api_keys}
    assert broker.ask(request((GROUPS, 0, UNSAFE))).error_code == ErrorCode.NONE
    assert not keys & {it.api_key for it in told(broker).api_keys}
    assert GROUPS not in levels(broker), "0 is off"
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    answer = broker.ask(heartbeat)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "penstock cluster features upgrade --to group.version=1" in answer.error_message
    (group,) = broker.ask(ConsumerGroupDescribeRequest(group_ids=["g"])).groups
    assert group.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("level", "written"), [(0, 0), (1, 1), (2, 1)])
def test_states_of_transactions_are_written_as_their_level_says(
    broker: BrokerContext, level: int, written: int
) -> None:
    kind = UP if level == 2 else UNSAFE
    broker.ask(request((TRANSACTIONS, level, kind)))
    session = Session(broker, f"tx-{level}")
    assert session.initialize() is ErrorCode.NONE
    place = partition_for(session.id, broker.cluster.config.transaction_state_log_num_partitions)
    values = committed_values(broker, "__transaction_state", place)
    assert int.from_bytes(values[-1][:2], "big") == written
    assert decode_value(values[-1]).producer_id == session.producer.id
