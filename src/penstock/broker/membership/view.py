"""What one broker knows of its cluster: the image, who can be reached where, and the settings in force."""

import logging
from collections.abc import Mapping
from typing import Final

from penstock.broker.membership.image_feed import ImageFeed, Listener
from penstock.metadata.image import BrokerInfo, ClusterImage, Delta, Endpoint, TopicImage
from penstock.metadata.rules.config_changes import BrokerLayers, broker_layers, distinct_overrides
from penstock.metadata.rules.decisions import Rules
from penstock.metadata.rules.feature_levels import in_force
from penstock.metadata.rules.topic_names import check_topic_name
from penstock.model.configs import (
    BrokerConfig,
    TopicConfig,
    resolve_broker_config,
    resolve_topic_config,
    without_effect,
)
from penstock.model.errors import InvalidConfig

_log = logging.getLogger(__name__)


class View:
    """`static` are the broker's settings that somebody set, under their Kafka names."""

    def __init__(self, feed: ImageFeed, broker_id: int, static: Mapping[str, str]) -> None:
        self.broker_id: Final = broker_id
        self.config: BrokerConfig = resolve_broker_config(static)
        self._static = static
        self._feed = feed
        self._topic_configs: dict[tuple[frozenset[tuple[str, str]], int], TopicConfig] = {}
        self._without_effect: dict[str, str] = {}  # settings that were set, and why they do nothing
        feed.listen(self._take_settings)

    @property
    def image(self) -> ClusterImage:
        return self._feed.image

    @property
    def cluster_id(self) -> str:
        assert self.image.cluster_id is not None, "load() comes first"
        return self.image.cluster_id

    def on_change(self, listener: Listener) -> None:
        """`listener` gets a Delta after each change of the image; it must neither fail nor wait.

        With `broker_configs` in it, `config` and the configs of all topics may be others than before.
        """
        self._feed.listen(listener)

    # who is where

    def endpoint(self, broker_id: int) -> Endpoint | None:
        """Where other brokers reach that one; None while it does not run."""
        broker = self.image.brokers.get(broker_id)
        return inter_broker(broker.listeners, self.config) if broker is not None else None

    def other_brokers(self) -> list[BrokerInfo]:
        """Those that take part, but for this one."""
        return [broker for broker in self.image.usable_brokers() if broker.id != self.broker_id]

    def level(self, feature: str) -> int:
        """The level of a feature that is in force in the cluster (O9)."""
        return in_force(self.image).get(feature, 0)

    # settings

    @property
    def broker_layers(self) -> BrokerLayers:
        return broker_layers(self.image, self.broker_id, self._static)

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The settings in force for a topic; topics with the same settings share one object."""
        key = frozenset(topic.config.items()), topic.replication_factor
        config = self._topic_configs.get(key)
        if config is None:
            config = self._topic_configs[key] = resolve_topic_config(
                topic.config, self._broker_defaults, replication_factor=key[1]
            )
        return config

    def check_topic_name(self, name: str) -> None:
        check_topic_name(name)

    @property
    def _broker_defaults(self) -> Mapping[str, str]:
        return self.broker_layers.in_force

    @property
    def rules(self) -> Rules:
        return Rules(self.config, self._broker_defaults)

    def _check_topics(self) -> None:
        for name, overrides in distinct_overrides(self.image):
            try:
                resolve_topic_config(overrides, self._broker_defaults)
            except InvalidConfig as error:
                raise InvalidConfig(
                    f"topic '{name}' has settings that cannot hold: {error}"
                ) from None

    def _take_settings(self, delta: Delta) -> None:
        if delta.broker_configs:
            try:
                self.config = resolve_broker_config(self._broker_defaults)
            except InvalidConfig as error:  # does not go with what was set for this broker alone
                _log.error("settings-refused broker=%d error=%s", self.broker_id, error)
            self._topic_configs.clear()
            self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        """Name each setting without effect once, when it is set or set anew after a removal."""
        before, self._without_effect = self._without_effect, without_effect(self._broker_defaults)
        for name in sorted(self._without_effect.keys() - before.keys()):
            reason = self._without_effect[name]
            _log.warning(
                "setting-without-effect broker=%d name=%s reason=%s", self.broker_id, name, reason
            )


def inter_broker(listeners: Mapping[str, Endpoint], config: BrokerConfig) -> Endpoint | None:
    """The listener that all brokers use among themselves, or a broker's first."""
    name = config.inter_broker_listener_name
    if name is not None and name.upper() in listeners:
        return listeners[name.upper()]
    return next(iter(listeners.values()), None)
