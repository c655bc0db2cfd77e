"""Declarations, bindings and routing of one virtual host."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.amqp.routing.bindings import Binding, DestinationKind
from penstock.amqp.routing.exchange import ExchangeProperties
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.topology import Topology, TopologyLimits, exchange_binding, queue_binding
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.tables import FieldTable, as_table
from tests.support.amqp_errors import refusal
from tests.unit.amqp.test_topic_matching import matches

NO_PROPERTIES = b"\0\0"


def topology(*queues: str) -> Topology:
    made = Topology()
    for queue in queues:
        made.add_queue(queue)
    return made


def declare(
    made: Topology,
    name: str,
    kind: str = "direct",
    arguments: dict[str, object] | None = None,
    *,
    auto_delete: bool = False,
    internal: bool = False,
) -> None:
    properties = ExchangeProperties(
        kind, auto_delete=auto_delete, internal=internal, arguments=as_table(arguments or {})
    )
    made.declare_exchange(name, properties)


def route(
    made: Topology, exchange: str, key: str = "", headers: FieldTable | None = None
) -> list[str]:
    properties = encode_properties(Properties(headers=headers)) if headers else NO_PROPERTIES
    return sorted(made.route(RoutedMessage(exchange, key, properties)))


def test_the_default_exchange_routes_to_the_queue_with_the_name_of_the_key() -> None:
    made = topology("q", "r")
    assert route(made, "", "q") == ["q"]
    assert route(made, "", "absent") == []
    made.remove_queue("q")
    assert route(made, "", "q") == []


def test_direct_fanout_and_topic() -> None:
    made = topology("q", "r")
    made.bind(queue_binding("q", "amq.direct", "k"))
    made.bind(queue_binding("q", "amq.fanout"))
    made.bind(queue_binding("r", "amq.fanout"))
    made.bind(queue_binding("r", "amq.topic", "a.*"))
    assert route(made, "amq.direct", "k") == ["q"]
    assert route(made, "amq.direct", "K") == []
    assert route(made, "amq.fanout", "anything") == ["q", "r"]
    assert route(made, "amq.topic", "a.b") == ["r"]


def test_a_queue_gets_a_message_once() -> None:
    made = topology("q")
    for key in ("a.*", "#", "a.b"):
        made.bind(queue_binding("q", "amq.topic", key))
    assert made.route(RoutedMessage("amq.topic", "a.b", NO_PROPERTIES)) == ("q",)


def test_publishing_to_an_absent_exchange_fails() -> None:
    with refusal(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'"):
        route(topology(), "x")


def test_only_other_exchanges_reach_an_internal_exchange() -> None:
    made = topology("q")
    declare(made, "inner", "fanout", internal=True)
    with refusal(
        ReplyCode.ACCESS_REFUSED, "cannot publish to internal exchange 'inner' in vhost '/'"
    ):
        made.check_publish("inner")
    made.bind(queue_binding("q", "inner"))
    made.bind(exchange_binding("inner", "amq.fanout"))
    assert route(made, "amq.fanout") == ["q"]


def test_cycles_of_exchanges_end() -> None:
    made = topology("q")
    declare(made, "one", "fanout")
    declare(made, "two", "fanout")
    made.bind(exchange_binding("two", "one"))
    made.bind(exchange_binding("one", "two"))
    made.bind(exchange_binding("one", "one"))
    made.bind(queue_binding("q", "two"))
    assert route(made, "one") == ["q"]
    assert route(made, "two") == ["q"]


def test_an_alternate_exchange_gets_what_matches_no_binding() -> None:
    made = topology("q", "rest")
    declare(made, "x", "direct", {"alternate-exchange": "unrouted"})
    made.bind(queue_binding("q", "x", "k"))
    assert route(made, "x", "other") == []  # it does not exist yet
    declare(made, "unrouted", "fanout")
    made.bind(queue_binding("rest", "unrouted"))
    assert route(made, "x", "other") == ["rest"]
    assert route(made, "x", "k") == ["q"]


def test_a_policy_sets_an_alternate_exchange_unless_an_argument_does() -> None:
    made = topology("q", "r")
    declare(made, "x")
    declare(made, "y", "direct", {"alternate-exchange": "amq.fanout"})
    made.bind(queue_binding("q", "amq.fanout"))
    made.bind(queue_binding("r", "amq.topic", "#"))
    assert route(made, "x", "k") == []
    for name in ("x", "y"):
        made.set_policy(name, {"alternate-exchange": "amq.topic"})
    assert route(made, "x", "k") == ["r"]
    assert route(made, "y", "k") == ["q"]


def test_cc_and_bcc_are_further_routing_keys() -> None:
    made = topology("a", "b", "c")
    headers = as_table({"CC": ["b", 1], "BCC": ["c"]})
    assert route(made, "", "a", headers) == ["a", "b", "c"]
    for queue in ("a", "b", "c"):
        made.bind(queue_binding(queue, "amq.direct", queue))
    assert route(made, "amq.direct", "a", headers) == ["a", "b", "c"]


def test_receivers_do_not_see_bcc() -> None:
    headers = as_table({"CC": ["b"], "BCC": ["c"], "n": 1})
    message = RoutedMessage("", "a", encode_properties(Properties(headers=headers)))
    del headers["BCC"]
    assert message.without_bcc() == encode_properties(Properties(headers=headers))
    assert message.visible_routing_keys() == ["a", "b"]


def test_cc_must_be_an_array() -> None:
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        'invalid message: {unacceptable_type_in_header,"CC",longstr}',
    ):
        route(topology("a"), "", "a", as_table({"CC": "b"}))


@pytest.mark.parametrize(
    ("value", "delay_ms"), [(5000, 5000), (-1, 0), ("20", 20), ("x", 0), (True, 0)]
)
def test_the_delay_is_a_positive_number(value: object, delay_ms: int) -> None:
    properties = encode_properties(Properties(headers=as_table({"x-delay": value})))
    assert RoutedMessage("x", "", properties).delay_ms() == delay_ms


def test_a_delayed_exchange_routes_as_the_type_it_names() -> None:
    made = topology("q")
    declare(made, "x", "x-delayed-message", {"x-delayed-type": "topic"})
    made.bind(queue_binding("q", "x", "a.#"))
    assert route(made, "x", "a.b.c") == ["q"]
    assert made.exchange("x").is_delayed
    text = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
    for arguments in ({}, {"x-delayed-type": "nonsense"}, {"x-delayed-type": "x-delayed-message"}):
        with refusal(ReplyCode.PRECONDITION_FAILED, text):
            declare(made, "y", "x-delayed-message", dict(arguments))


# Declarations ---------------------------------------------------------------------------------------


def test_declaring_again_must_agree() -> None:
    made = topology()
    declare(made, "x", "direct", {"alternate-exchange": "a"})
    declare(made, "x", "direct", {"alternate-exchange": "a", "other": 1})
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'",
    ):
        declare(made, "x", "topic")
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        "inequivalent arg 'auto_delete' for exchange 'x' in vhost '/': "
        "received 'true' but current is 'false'",
    ):
        declare(made, "x", auto_delete=True)
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': "
        "received none but current is the value 'a' of type 'longstr'",
    ):
        declare(made, "x")


def test_names_and_types_are_checked() -> None:
    made = topology()
    with refusal(
        ReplyCode.ACCESS_REFUSED, "exchange name 'amq.x' contains reserved prefix 'amq.*'"
    ):
        declare(made, "amq.x")
    with refusal(ReplyCode.PRECONDITION_FAILED, "unknown exchange type 'nonsense'"):
        declare(made, "x", "nonsense")
    with refusal(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange"):
        declare(made, "")
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
    ):
        declare(made, "x", "direct", {"alternate-exchange": 1})


def test_predeclared_exchanges_stay() -> None:
    made = topology()
    with refusal(
        ReplyCode.ACCESS_REFUSED,
        "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    ):
        made.delete_exchange("amq.direct")


def test_deleting_an_exchange() -> None:
    made = topology("q")
    made.delete_exchange("absent")
    declare(made, "x")
    made.bind(queue_binding("q", "x", "k"))
    with refusal(ReplyCode.PRECONDITION_FAILED, "exchange 'x' in vhost '/' in use"):
        made.delete_exchange("x", if_unused=True)
    made.delete_exchange("x")
    assert not list(made.bindings())
    assert not made.queues["q"]


def test_bindings_need_both_ends() -> None:
    made = topology("q")
    with refusal(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'"):
        made.bind(queue_binding("q", "x"))
    with refusal(ReplyCode.NOT_FOUND, "no queue 'r' in vhost '/'"):
        made.bind(queue_binding("r", "amq.direct"))
    with refusal(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange"):
        made.bind(queue_binding("q", ""))


def test_binding_twice_and_unbinding_twice_change_nothing() -> None:
    made = topology("q")
    binding = queue_binding("q", "amq.direct", "k", {"b": ("I", 1), "a": ("I", 1)})
    again = queue_binding("q", "amq.direct", "k", {"a": ("I", 1), "b": ("I", 1)})
    assert made.bind(binding)
    assert not made.bind(again)
    assert made.bind(queue_binding("q", "amq.direct", "k"))
    assert made.unbind(again)
    assert not made.unbind(binding)
    assert route(made, "amq.direct", "k") == ["q"]  # by the binding without arguments


def test_auto_delete_exchanges_go_with_their_last_binding() -> None:
    made = topology("q")
    declare(made, "first", "fanout", auto_delete=True)
    declare(made, "second", "fanout", auto_delete=True)
    made.bind(exchange_binding("second", "first"))
    made.bind(queue_binding("q", "second"))
    made.remove_queue("q")
    assert "second" not in made.exchanges
    assert "first" not in made.exchanges


def test_auto_delete_exchanges_stay_while_a_binding_is_left() -> None:
    made = topology("q")
    declare(made, "x", auto_delete=True)
    for key in ("a", "b"):
        made.bind(queue_binding("q", "x", key))
    made.unbind(queue_binding("q", "x", "a"))
    assert route(made, "x", "b") == ["q"]
    made.unbind(queue_binding("q", "x", "b"))
    assert "x" not in made.exchanges


def test_an_auto_delete_exchange_that_was_never_bound_stays() -> None:
    made = topology()
    declare(made, "x", auto_delete=True)
    declare(made, "y", auto_delete=True)
    made.bind(exchange_binding("y", "x"))
    made.delete_exchange("y")
    assert "x" not in made.exchanges
    declare(made, "z", auto_delete=True)
    assert "z" in made.exchanges


def test_a_message_may_match_a_bounded_number_of_queues() -> None:
    made = Topology(limits=TopologyLimits(max_targets=2))
    for queue in ("a", "b", "c"):
        made.add_queue(queue)
        made.bind(queue_binding(queue, "amq.fanout"))
    with pytest.raises(AmqpError, match=r"^RESOURCE_ERROR - .* more than 2 queues"):
        route(made, "amq.fanout")


# Hashing ----------------------------------------------------------------------------------------------


def test_weights_share_the_messages_and_removal_moves_only_the_lost_ones() -> None:
    made = topology("a", "b", "c")
    declare(made, "x", "x-consistent-hash")
    for queue, weight in (("a", "1"), ("b", "1"), ("c", "2")):
        made.bind(queue_binding(queue, "x", weight))
    keys = [f"key-{number}" for number in range(4000)]
    before = {key: route(made, "x", key)[0] for key in keys}
    counts = Counter(before.values())
    assert 700 < counts["a"] < 1300
    assert 1600 < counts["c"] < 2400
    made.unbind(queue_binding("b", "x", "1"))
    for key in keys:
        assert before[key] in ("b", route(made, "x", key)[0])


def test_hashing_by_header_and_property() -> None:
    made = topology("a", "b")
    declare(made, "h", "x-consistent-hash", {"hash-header": "user"})
    declare(made, "p", "x-consistent-hash", {"hash-property": "message_id"})
    for exchange in ("h", "p"):
        for queue in ("a", "b"):
            made.bind(queue_binding(queue, exchange, "1"))
    by_header = {route(made, "h", str(n), as_table({"user": "u"}))[0] for n in range(50)}
    assert len(by_header) == 1
    identified = [encode_properties(Properties(message_id=str(n))) for n in range(50)]
    assert {made.route(RoutedMessage("p", "k", each))[0] for each in identified} == {"a", "b"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("x", "The binding key must be an integer"),
        ("0", "The binding key must be greater than 0"),
        ("10001", "The binding key must not exceed 10000"),
    ],
)
def test_weights_are_checked(key: str, text: str) -> None:
    made = topology("q")
    declare(made, "x", "x-consistent-hash")
    with pytest.raises(AmqpError, match=text):
        made.bind(queue_binding("q", "x", key))


def test_hash_arguments_are_checked() -> None:
    with pytest.raises(AmqpError, match="mutually exclusive"):
        declare(topology(), "x", "x-consistent-hash", {"hash-header": "a", "hash-property": "b"})
    with pytest.raises(AmqpError, match="Unsupported property: b"):
        declare(topology(), "x", "x-consistent-hash", {"hash-property": "b"})


def test_random_and_modulus_choose_one_queue() -> None:
    made = topology("a", "b", "c")
    for kind in ("x-random", "x-modulus-hash"):
        declare(made, kind, kind)
        assert route(made, kind, "k") == []
        for queue in ("a", "b", "c"):
            made.bind(queue_binding(queue, kind))
    chosen = {made.route(RoutedMessage("x-random", "k", NO_PROPERTIES, n)) for n in range(9)}
    assert chosen == {("a",), ("b",), ("c",)}
    assert len({tuple(route(made, "x-modulus-hash", str(n))) for n in range(50)}) == 3


# Against brute force ------------------------------------------------------------------------------------

_exchanges = st.sampled_from(["d1", "f1", "t1", "t2"])
_queues = st.sampled_from(["a", "b", "c"])
_keys = st.sampled_from(["a", "a.b", "b.c", "#", "a.#", "*.b", ""])
_KINDS = {"d1": "direct", "f1": "fanout", "t1": "topic", "t2": "topic"}


class RoutingMachine(RuleBasedStateMachine):
    """Changes a topology in any order and compares cached routes with a search of plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.made = topology()
        self.bindings: dict[tuple[str, DestinationKind, str, str], Binding] = {}
        self.alternates: dict[str, str] = {}

    @rule(name=_exchanges, alternate=st.none() | _exchanges, auto_delete=st.just(False))
    def declare(self, name: str, alternate: str | None, auto_delete: bool) -> None:
        if name not in self.made.exchanges:
            arguments: dict[str, object] = {"alternate-exchange": alternate} if alternate else {}
            declare(self.made, name, _KINDS[name], arguments, auto_delete=auto_delete)
            self.alternates.pop(name, None)
            if alternate:
                self.alternates[name] = alternate

    @rule(name=_exchanges)
    def delete(self, name: str) -> None:
        self.made.delete_exchange(name)
        self._drop(
            lambda b: (
                b.source == name or (b.destination.kind, b.destination.name) == ("exchange", name)
            )
        )

    @rule(name=_queues)
    def add_queue(self, name: str) -> None:
        self.made.add_queue(name)

    @rule(name=_queues)
    def remove_queue(self, name: str) -> None:
        self.made.remove_queue(name)
        self._drop(lambda b: (b.destination.kind, b.destination.name) == ("queue", name))

    @rule(source=_exchanges, queue=_queues, key=_keys, remove=st.booleans())
    def bind_queue(self, source: str, queue: str, key: str, remove: bool) -> None:
        self._change(queue_binding(queue, source, key), remove)

    @rule(source=_exchanges, destination=_exchanges, key=_keys, remove=st.booleans())
    def bind_exchange(self, source: str, destination: str, key: str, remove: bool) -> None:
        self._change(exchange_binding(destination, source, key), remove)

    def _change(self, binding: Binding, remove: bool) -> None:
        key = binding.source, *binding.destination, binding.routing_key
        try:
            (self.made.unbind if remove else self.made.bind)(binding)
        except AmqpError:  # an end of the binding does not exist
            return
        if remove:
            self.bindings.pop(key, None)
        else:
            self.bindings[key] = binding

    def _drop(self, is_gone: object) -> None:
        assert callable(is_gone)
        self.bindings = {k: b for k, b in self.bindings.items() if not is_gone(b)}

    @invariant()
    def routes_agree(self) -> None:
        for exchange in _KINDS:
            for key in ("a", "a.b", "b.c", ""):
                if exchange in self.made.exchanges:
                    for _ in range(2):  # the second comes from the cache
                        assert route(self.made, exchange, key) == self._search(exchange, key)

    def _search(self, start: str, key: str) -> list[str]:
        found, seen, waiting = set(), {start}, [start]
        while waiting:
            name = waiting.pop()
            if name not in self.made.exchanges:
                continue
            hits = [b for b in self.bindings.values() if b.source == name and _is_hit(b, key)]
            targets = [b.destination.name for b in hits if b.destination.kind == "exchange"]
            found |= {b.destination.name for b in hits if b.destination.kind == "queue"}
            if not hits and name in self.alternates:
                targets.append(self.alternates[name])
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return sorted(found)


def _is_hit(binding: Binding, key: str) -> bool:
    kind = _KINDS[binding.source]
    if kind == "topic":
        pattern = binding.routing_key.split(".") if binding.routing_key else []
        return matches(pattern, key.split(".") if key else [])
    return kind == "fanout" or binding.routing_key == key


TestRouting = RoutingMachine.TestCase
TestRouting.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(_exchanges, _queues, _keys), max_size=20))
def test_removing_every_binding_leaves_nothing(bound: list[tuple[str, str, str]]) -> None:
    made = topology("a", "b", "c")
    for name, kind in _KINDS.items():
        declare(made, name, kind)
    for exchange, queue, key in bound:
        made.bind(queue_binding(queue, exchange, key))
    for queue in ("a", "b", "c"):
        made.remove_queue(queue)
    assert not list(made.bindings())
    assert made._binding_count == 0
