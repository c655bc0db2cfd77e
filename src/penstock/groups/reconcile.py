"""One member's way from what it has to what it should have, without the others stopping (KIP-848).

First it gives up what is no longer its own, and only then reaches the target's epoch; it receives what
is new as soon as the previous owners have let go.
"""

from penstock.groups.assignment import NOTHING, Assignment
from penstock.groups.consumer import ConsumerGroup, ConsumerMember, Phase


def reconcile(group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None) -> bool:
    """Move the member as far as it can go now; true if that changed it.

    `owned` is what the member says it works on; None when it did not say.
    """
    match member.phase:
        case Phase.STABLE:
            if member.epoch == group.assignment_epoch:
                return False
            return _advance(group, member, member.epoch, owned)
        case Phase.REVOKING:
            if _still_owns(member.revoking, owned):
                return False
            return _advance(group, member, member.epoch + 1, owned)
        case Phase.WAITING:
            return _advance(group, member, member.epoch, owned)


def waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Something of its target is still with another member."""
    missing = group.target.get(member.id, NOTHING) - member.assigned
    return any(group.owners.get(p, member.id) != member.id for p in missing)


def _still_owns(partitions: Assignment, owned: Assignment | None) -> bool:
    return bool(partitions) and (owned is None or not partitions.isdisjoint(owned))


def _advance(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, owned: Assignment | None
) -> bool:
    before = (member.epoch, member.phase, member.assigned, member.revoking)
    target = group.target.get(member.id, NOTHING)
    kept = member.assigned & target
    surplus = member.assigned - kept
    if _still_owns(surplus, owned):
        after = (epoch, Phase.REVOKING, kept, surplus)
    else:
        free = {p for p in target - kept if group.owners.get(p, member.id) == member.id}
        assigned = kept | free
        phase = Phase.STABLE if assigned == target else Phase.WAITING
        after = (group.assignment_epoch, phase, assigned, NOTHING)
    if after == before:
        return False
    group.release(member)
    member.enter(after[0], after[1])
    member.assigned, member.revoking = after[2], after[3]
    group.claim(member)
    return True
