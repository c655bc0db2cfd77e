"""No API is forgotten: with an authoriser that denies everything, nothing is done and nothing is told."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.kafka.apis import APIS
from penstock.model.errors import ErrorCode
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.schema import Struct
from tests.support.context import BrokerContext, broker_context
from tests.support.plausible import World, plausible
from tests.unit.wire.catalogue import all_messages

OPEN_TO_ALL = {ApiKey.API_VERSIONS}  # a client must be able to ask before it has said who it is
REQUESTS = {m.api_key: m for m in all_messages() if m.__name__.endswith("Request")}
SECRET = "secret-topic"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerContext]:
    with broker_context(tmp_path) as started:
        started.create_topic(SECRET, partitions=2)
        started.append(SECRET)
        yield started


def item_codes(value: Any, *, inside: bool = False) -> Iterator[int]:
    """The error codes of a response's items, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from item_codes(item, inside=True)
    elif isinstance(value, Struct):
        for name in type(value).fields:
            if name != "error_code":
                yield from item_codes(getattr(value, name), inside=True)
            elif inside:
                yield value.error_code  # type: ignore[attr-defined] # it has a field of that name


@pytest.mark.parametrize("key", [key for key in APIS if key not in OPEN_TO_ALL], ids=str)
def test_who_may_do_nothing_is_told_nothing_and_changes_nothing(
    broker: BrokerContext, key: int
) -> None:
    topics = dict(broker.cluster.image.topics)
    next_offset = broker.partition(SECRET).log.next_offset
    world = World({SECRET: topics[SECRET].id})
    broker.allow_only()

    for seed in range(5):
        request = plausible(REQUESTS[key], APIS[key].max_version, world, Random(seed))
        if isinstance(request, ProduceRequest):
            request.acks = 1  # else there is no answer to look at
        response = broker.ask(request)

        told = SECRET in repr(response) and SECRET not in repr(request)
        assert not told, "it names what the asker may not see"
        assert ErrorCode.NONE not in set(item_codes(response)), response
    assert broker.cluster.image.topics == topics
    assert broker.partition(SECRET).log.next_offset == next_offset
