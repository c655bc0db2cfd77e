"""Scenarios as text: the transcript is the test, and the documentation.

Rewrite them after an intended change with:  UPDATE_TRANSCRIPTS=1 pytest tests/unit/groups/test_transcripts.py
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.groups.consumer import ConsumerGroup
from penstock.groups.events import CancelTimer, Effect, Reply, SetTimer, Write, WriteBytes
from penstock.groups.protocol import encode_assignment
from penstock.model.errors import ErrorCode
from tests.unit.groups.stage import GROUP, Stage


class Play(Stage):
    """A stage that writes down what is asked and what is done about it."""

    def __init__(self, **topics: int) -> None:
        super().__init__(None, **topics)
        self.lines: list[str] = []

    def say(self, what: str) -> None:
        self.lines.append(f"{(self.now_ms - 1000) / 1000:g}s  {what}")

    def do(self, group: str, effects: list[Effect]) -> None:
        super().do(group, effects)
        self.lines += [f"      {describe(effect)}" for effect in effects]
        known = self.shard.groups.get(GROUP)
        if known is not None:
            kind = "consumer" if isinstance(known, ConsumerGroup) else "classic"
            number = known.epoch if isinstance(known, ConsumerGroup) else known.generation
            self.lines.append(f"   = {kind} {known.state.value} {number} {sorted(known.members)}")


def describe(effect: Effect) -> str:
    match effect:
        case Reply():
            return f"answer {type(effect.message).__name__.removesuffix('Response')} {_facts(effect.message)}".rstrip()
        case Write():
            kinds = [
                type(key).__name__.removesuffix("Key") + ("" if value else " gone")
                for key, value in effect.entries
            ]
            return "write " + ", ".join(kinds)
        case WriteBytes():
            return f"write {len(effect.records)} offsets"
        case SetTimer():
            return f"timer {' '.join(effect.key).rstrip()} {type(effect.event).__name__}"
        case CancelTimer():
            return f"no timer {' '.join(effect.key).rstrip()}"


def _facts(message: Any) -> str:
    if message.error_code:
        return ErrorCode(message.error_code).name
    facts = []
    for name in ("member_id", "generation_id", "member_epoch", "leader"):
        value = getattr(message, name, None)
        if value:
            facts.append(f"{name}={value}")
    assignment = getattr(message, "assignment", None)
    if isinstance(assignment, bytes):
        facts.append(f"assignment={len(assignment)} bytes")
    elif assignment is not None:
        facts.append(f"partitions={[p for t in assignment.topic_partitions for p in t.partitions]}")
    return " ".join(facts)


def two_classic_members(play: Play) -> None:
    play.say("ann joins")
    play.join(fresh="ann")
    play.say("nobody else comes")
    play.settle()
    play.say("ann, the leader, assigns")
    play.sync("ann", 1, {"ann": b"p0 p1"})
    play.pass_time(1000)
    play.say("bob joins")
    play.join(fresh="bob")
    play.say("ann's heartbeat")
    play.heartbeat("ann", 1)
    play.say("ann joins again")
    play.join("ann")
    play.say("bob asks for its part")
    play.sync("bob", 2)
    play.say("ann assigns")
    play.sync("ann", 2, {"ann": b"p0", "bob": b"p1"})
    play.say("bob is silent, ann is not")
    play.pass_time(6000)
    play.heartbeat("ann", 2)
    play.pass_time(4000)


def a_partition_changes_hands(play: Play) -> None:
    play.say("ann joins")
    play.beat("ann", 0)
    play.say("bob joins")
    play.beat("bob", 0)
    play.pass_time(1000)
    play.say("ann is heard: it must give up a partition")
    play.beat("ann", 1, owned={"t": [0, 1]})
    play.say("ann has given it up")
    play.beat("ann", 1, owned={"t": [0]})
    play.say("bob is heard: it is free")
    play.beat("bob", 2, owned={})
    play.say("ann leaves")
    play.beat("ann", -1)
    play.say("bob is heard")
    play.beat("bob", 2, owned={"t": [1]})


def a_live_upgrade_and_back(play: Play) -> None:
    play.say("ann joins with the classic protocol")
    play.join(fresh="ann")
    play.settle()
    play.sync("ann", 1, {"ann": encode_assignment({"t": [0, 1]}, 1)})
    play.say("bob joins with the consumer protocol")
    play.beat("bob", 0)
    play.say("ann's heartbeat")
    play.heartbeat("ann", 1)
    play.say("ann joins again, and says what it works on")
    play.join("ann", owned={"t": [0, 1]})
    play.say("bob leaves")
    play.beat("bob", -1)
    play.say("ann's heartbeat")
    play.heartbeat("ann", 1)


SCENARIOS: dict[str, Callable[[Play], None]] = {
    "two_classic_members": two_classic_members,
    "a_partition_changes_hands": a_partition_changes_hands,
    "a_live_upgrade_and_back": a_live_upgrade_and_back,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str) -> None:
    path = Path(__file__).parent / "transcripts" / f"{name}.txt"
    play = Play(t=2)
    SCENARIOS[name](play)
    actual = "\n".join(play.lines) + "\n"
    if "UPDATE_TRANSCRIPTS" in os.environ:
        path.write_text(actual)

    assert actual == path.read_text()
