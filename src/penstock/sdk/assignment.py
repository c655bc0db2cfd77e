"""What the group gives and takes: where to begin, what to commit before it goes, how far behind it is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.sdk.librdkafka import errors_of
from penstock.sdk.message import Place

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer

_ASSIGN, _REVOKE, _LOST = 0, 1, 2
_LAG_TIMEOUT_S: Final = 5.0


class Assignment:
    """librdkafka's rebalance callbacks. They run inside the consumer's own poll, on its thread."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_assign": self._on_assign,
            "on_revoke": self._on_revoke,
            "on_lost": self._on_lost,
        }

    def _on_assign(self, client: Any, partitions: list[Any]) -> None:
        consumer = self._consumer
        consumer.metrics.rebalances += 1
        starts = consumer.starts(partitions)
        if starts is not None:
            if consumer.is_incremental:
                client.incremental_assign(starts)
            else:
                client.assign(starts)
        consumer.tell(_ASSIGN, _places(partitions))

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        self._consumer.before_loss(_places(partitions), True)
        self._consumer.forget(_places(partitions), commit=True)
        self._consumer.tell(_REVOKE, _places(partitions))

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self._consumer.before_loss(_places(partitions), False)
        self._consumer.forget(_places(partitions), commit=False)
        self._consumer.tell(_LOST, _places(partitions))

    def starts_at(self, partitions: list[Any], when_ms: int, timeout_s: float) -> list[Any]:
        """Committed offsets, and where there is none, the first message of that time."""
        with errors_of("committed offsets"):
            committed = self._consumer.client.committed(partitions, timeout_s)
        missing = [(one.topic, one.partition) for one in committed if one.offset < 0]
        offsets = self.offsets_at(missing, when_ms, timeout_s)
        for one in committed:
            one.offset = offsets.get((one.topic, one.partition), one.offset)
        return list(committed)

    def offsets_at(
        self, places: Sequence[Place], when_ms: int, timeout_s: float
    ) -> dict[Place, int]:
        """The first message of that time or later in each partition; the end where there is none."""
        from confluent_kafka import TopicPartition

        if not places:
            return {}
        asked = [TopicPartition(*place, when_ms) for place in places]
        with errors_of("offsets of a time"):
            found = self._consumer.client.offsets_for_times(asked, timeout=timeout_s)
        return {(one.topic, one.partition): int(one.offset) for one in found}

    def lag(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        client = self._consumer.client
        behind: dict[Place, int] = {}
        with errors_of("lag"):
            for one in client.position(client.assignment()):
                place = (one.topic, one.partition)
                low, high = client.get_watermark_offsets(one, _LAG_TIMEOUT_S)
                position = positions.get(place, one.offset)
                if position < 0:
                    position = client.committed([one], _LAG_TIMEOUT_S)[0].offset
                behind[place] = max(0, high - (low if position < 0 else position))
        return behind


def _places(partitions: list[Any]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]
