"""A cluster with a history: the metadata as the controller decides it, and beside it a model of the data.

What was committed is never missing from a replica that may lead, unless the law of the topic, or an
operator, gave it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource, alter_configs
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.elections import ElectionKind, balance_leaders, elect_leaders
from penstock.metadata.rules.isr_changes import IsrChange, Member, alter_partition
from penstock.metadata.rules.partition_edits import Answers
from penstock.metadata.rules.partition_rules import ElectionContext, standing_elr
from penstock.metadata.rules.reassignment import alter_reassignments, complete_reassignments
from penstock.metadata.rules.registration import (
    begin_shutdown,
    broker_lost,
    brokers_to_register,
    lost_brokers,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import World, state

BROKERS = (1, 2, 3, 4)
SEVERITY = ("clean", "process-crash", "power-loss", "empty-disk")
Entry = tuple[int, int]  # leader epoch, number


@dataclass
class Data:
    """The logs of one partition's replicas."""

    logs: dict[int, list[Entry]] = field(default_factory=lambda: {it: [] for it in BROKERS})
    committed: list[Entry] = field(default_factory=list)
    reign_start: int = 0  # where the present leader began

    def common(self, one: int, other: int) -> int:
        pairs = zip(self.logs[one], self.logs[other], strict=False)
        count = 0
        for mine, others in pairs:
            if mine != others:
                break
            count += 1
        return count

    def give_up(self, leader: int) -> None:
        """What this leader does not have is lost by law."""
        log = self.logs[leader]
        while self.committed != log[: len(self.committed)]:
            self.committed.pop()


class History:
    def __init__(self, assignments: Sequence[tuple[int, ...]], config: dict[str, str | None]):
        self.world = World(dict.fromkeys(BROKERS))
        replicas = dict(enumerate(assignments))
        self.world.create(TopicSpec("t", assignments=replicas, config=config))
        self.data = [Data() for _ in assignments]
        self.unclean = "unclean.leader.election.enable" in config
        self.flushes = "flush.messages" in config
        self.counter = 0
        self.last_start: dict[int, tuple[int, str]] = {}  # session and ending before it

    @property
    def image(self) -> ClusterImage:
        return self.world.image

    def partition(self, number: int) -> PartitionImage:
        return self.image.topics["t"].partitions[number]

    def context(self) -> ElectionContext:
        return ElectionContext(self.image, self.world.rules)

    # putting decisions into effect

    def commit(
        self,
        decisions: Sequence[Decision[object]],
        *,
        joining: int | None = None,
        returned: int | None = None,
        by_hand: bool = False,
    ) -> None:
        for decision in decisions:
            before = self.image.topics["t"].partitions
            context = ElectionContext(self.image, self.world.rules, joining=joining)
            self.world.carry_out(decision)
            settings = context.settings(self.image.topics["t"])
            after = self.image.topics["t"].partitions
            for number, (old, new) in enumerate(zip(before, after, strict=True)):
                check_state(new)
                assert (
                    (len(new.isr) < settings.least(new)) or not new.elr or old is new or old == new
                )
                if old != new:
                    check_step(
                        old, new, context.able, standing_elr(old, settings), by_hand or self.unclean
                    )
                    if len(new.isr) < settings.least(new) and not was_unclean(old, new):
                        left = set(old.isr) & set(new.replicas) - set(new.isr)
                        assert left <= {*new.elr, returned}, "who left is still eligible"
                    self.follow(number, old, new)

    def follow(self, number: int, old: PartitionImage, new: PartitionImage) -> None:
        data = self.data[number]
        if new.leader_epoch == old.leader_epoch or new.leader < 0:
            return
        if was_unclean(old, new):
            data.give_up(new.leader)
        data.reign_start = len(data.logs[new.leader])

    # brokers

    def start(self, broker_id: int, ending: str) -> None:
        if broker_id in self.image.live:
            return
        ending = self.worst_ending(broker_id, ending)
        is_empty = ending == "empty-disk" or broker_id not in self.image.registrations
        for data in self.data:
            if is_empty:
                data.logs[broker_id].clear()
            elif ending == "power-loss" and not self.flushes:
                del data.logs[broker_id][len(data.logs[broker_id]) // 2 :]
        directory = "another" if is_empty else None
        known = self.image.registrations.get(broker_id)
        if not is_empty and known is not None:
            directory = known.directory_id
        elif known is not None and known.directory_id == "another":
            directory = "yet another"
        self.world.start(broker_id, ending, directory=directory)
        self.last_start[broker_id] = self.image.brokers[broker_id].epoch, ending

    def worst_ending(self, broker_id: int, ending: str) -> str:
        """Since the broker was last registered: what is lost stays lost when it ends well the next time."""
        if not self.is_unknown(broker_id):
            return ending
        return max(ending, self.last_start[broker_id][1], key=SEVERITY.index)

    def is_unknown(self, broker_id: int) -> bool:
        """The controller has not dealt with its last session, nor with how the one before it ended."""
        known = self.image.registrations.get(broker_id)
        epoch = self.last_start.get(broker_id, (0, ""))[0]
        return epoch > (known.epoch if known else 0)

    def stop(self, broker_id: int) -> None:
        if broker_id in self.image.live:
            self.world.stop(broker_id)

    def attend(self, upto: int) -> None:
        """The duties of the controller; `upto`: it is lost itself after so many commits of each."""
        for broker_id in brokers_to_register(self.image):
            decisions = register_broker(self.image, broker_id, self.world.rules)
            for number, data in enumerate(self.data):
                now = self.partition(number)
                if now.replication_factor == 1 and {*now.isr, *now.elr} == {broker_id}:
                    data.give_up(broker_id)
            self.commit(decisions[:upto], returned=broker_id)
        for broker_id in lost_brokers(self.image):
            self.commit(broker_lost(self.image, broker_id, self.world.rules)[:upto])

    def unfence(self, broker_id: int) -> None:
        self.commit(unfence_broker(self.image, broker_id, self.world.rules), joining=broker_id)

    def shut_down(self, broker_id: int) -> None:
        self.commit(begin_shutdown(self.image, broker_id, self.world.rules))

    def strike_off(self, broker_id: int) -> None:
        if broker_id in self.image.live or len(self.image.registrations) < 3:
            return
        try:
            self.commit(unregister_broker(self.image, broker_id, self.world.rules))
        except BrokerError:
            return

    # data

    def leads(self, number: int) -> bool:
        leader = self.image.brokers.get(self.partition(number).leader)
        return (
            leader is not None
            and leader.id not in brokers_to_register(self.image)
            and leader.epoch > 0
        )

    def produce(self, number: int) -> None:
        if self.leads(number):
            now = self.partition(number)
            self.counter += 1
            self.data[number].logs[now.leader].append((now.leader_epoch, self.counter))
            self.advance(number)

    def fetch(self, number: int, broker_id: int, count: int) -> None:
        now, data = self.partition(number), self.data[number]
        if broker_id in now.replicas and broker_id in self.image.live and self.leads(number):
            if broker_id != now.leader:
                known = data.common(broker_id, now.leader)
                log = data.logs[broker_id]
                log[known:] = data.logs[now.leader][known : known + count]
            self.advance(number)

    def advance(self, number: int) -> None:
        """R3: what every member of the ISR has is committed, while there are enough of them."""
        now, data = self.partition(number), self.data[number]
        settings = self.context().settings(self.image.topics["t"])
        if len(now.isr) >= settings.least(now):
            upto = min(data.common(member, now.leader) for member in now.isr)
            if upto > len(data.committed):
                data.committed = data.logs[now.leader][:upto]

    def catch_up(self, number: int) -> None:
        """Everybody who runs fetches everything, and is let in."""
        for broker_id in BROKERS:
            self.fetch(number, broker_id, len(self.data[number].committed) + 100)
        self.alter_isr(number, BROKERS)
        self.advance_if_led(number)

    def advance_if_led(self, number: int) -> None:
        if self.leads(number):
            self.advance(number)

    def alter_isr(self, number: int, wanted: Sequence[int]) -> None:
        """R5: the leader lets in who has caught up, and drops whom it likes."""
        now, data = self.partition(number), self.data[number]
        if not self.leads(number) or now.recovering:
            return
        caught_up = max(len(data.committed), data.reign_start)
        isr = [
            it
            for it in now.replicas
            if it == now.leader
            or (it in wanted and (it in now.isr or data.common(it, now.leader) >= caught_up))
        ]
        self.ask(number, isr, recovering=False)

    def recover(self, number: int) -> None:
        now = self.partition(number)
        if self.leads(number) and now.recovering:
            self.ask(number, list(now.isr), recovering=False)

    def ask(self, number: int, isr: Sequence[int], *, recovering: bool) -> None:
        now, topic = self.partition(number), self.image.topics["t"]
        brokers = self.image.brokers
        members = tuple(Member(it, brokers[it].epoch) for it in isr if it in brokers)
        asked = IsrChange(
            topic.id, number, now.leader_epoch, now.partition_epoch, members, recovering
        )
        epoch = brokers[now.leader].epoch
        (outcome,) = alter_partition(self.image, self.world.rules, now.leader, epoch, [asked])
        if isinstance(outcome, Decision):
            self.commit([outcome])
            after = self.partition(number)
            assert outcome.result == after
            assert after.adding or set(now.adding) <= set(after.isr), "added before it caught up"

    # operators

    def elect(self, kind: ElectionKind) -> None:
        answers = elect_leaders(self.image, self.world.rules, kind)
        self.answer(answers, by_hand=kind is ElectionKind.UNCLEAN)

    def balance(self) -> None:
        self.commit(balance_leaders(self.image, self.world.rules, max_moves=2))

    def move(self, number: int, replicas: Sequence[int] | None) -> None:
        at = TopicPartition("t", number)
        self.answer(alter_reassignments(self.image, self.world.rules, {at: replicas}))
        self.commit(complete_reassignments(self.image, self.world.rules))

    def answer(self, answers: Answers, *, by_hand: bool = False) -> None:
        self.commit(answers.decisions, by_hand=by_hand)

    def configure(self, min_isr: int) -> None:
        ops = [ConfigOp("min.insync.replicas", Op.SET, str(min_isr))]
        self.commit([alter_configs(self.image, Resource.TOPIC, "t", ops, self.world.layers)])

    # the laws

    def check(self) -> None:
        pending = set(filter(self.is_unknown, BROKERS))
        settings = self.context().settings(self.image.topics["t"])
        for number, data in enumerate(self.data):
            now = self.partition(number)
            for member in {*now.isr, *standing_elr(now, settings)} - pending:
                assert data.logs[member][: len(data.committed)] == data.committed, (
                    f"broker {member} may lead {number} without all that was committed: {now}"
                )

    def check_image(self) -> None:
        assert state(self.image) == state(ClusterImage.of(self.world.snapshot))


def was_unclean(old: PartitionImage, new: PartitionImage) -> bool:
    return new.recovering and new.leader not in {*old.isr, *old.elr}


def check_state(now: PartitionImage) -> None:
    assert len(set(now.replicas)) == len(now.replicas) > 0
    assert set(now.isr) <= set(now.replicas)
    assert set(now.elr) <= set(now.replicas) - set(now.isr)
    assert now.leader in now.isr or now.leader == -1
    assert set(now.adding) <= set(now.replicas)
    assert now.leader == -1 or not now.last_known_elr
    assert set(now.last_known_elr) <= set(now.replicas) - {*now.isr, *now.elr}
    assert set(now.removing) <= set(now.replicas) - set(now.adding)
    assert not now.recovering or len(now.isr) <= 1


def check_step(
    old: PartitionImage,
    new: PartitionImage,
    able: frozenset[int],
    eligible: Sequence[int],
    may_be_unclean: bool,
) -> None:
    assert new.partition_epoch == old.partition_epoch + 1
    assert new.leader_epoch in (old.leader_epoch, old.leader_epoch + 1)
    removed = set(old.replicas) - set(new.replicas)
    if new.leader != old.leader or removed:
        assert new.leader_epoch == old.leader_epoch + 1
    if new.leader != old.leader and new.leader >= 0:
        assert new.leader in able
        is_unclean = was_unclean(old, new)
        assert may_be_unclean or not is_unclean
        if is_unclean and not able.isdisjoint(old.last_known_elr):
            assert new.leader in old.last_known_elr
        caught_up = set(new.isr if removed else ())  # this very change ends a reassignment
        assert is_unclean or new.leader in {*old.isr, *eligible, *caught_up}
        if new.leader not in {*old.isr, *caught_up}:
            assert new.isr == (new.leader,)
            assert set(old.isr).isdisjoint(able), "somebody in sync could lead"
    if removed:
        assert new.isr or not old.isr
