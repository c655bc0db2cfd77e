"""What an error of etcd means for who asked: done, not done, or nobody knows. In doubt, nobody knows."""

from enum import Enum, auto
from typing import Final

from grpc import StatusCode

from penstock.metadata.store import Ambiguous, CommitTooLarge, LeaseGone, StoreError, StoreFull


class Fault(Enum):
    NOT_DONE = auto()  # this member did not take it: another may
    UNKNOWN = auto()  # it may have happened, or may yet
    STALE = auto()  # the member has gone back, or lags behind: another may not
    NO_TOKEN = auto()  # authenticate, then ask again
    COMPACTED = auto()
    TOO_LARGE = auto()
    FULL = auto()
    LEASE_GONE = auto()
    REFUSED = auto()  # it will never be done


_BY_TEXT: Final = (
    ("failed to connect to all addresses", Fault.NOT_DONE),  # never sent
    ("etcdserver: no leader", Fault.NOT_DONE),
    ("not supported for learner", Fault.NOT_DONE),
    ("too many requests", Fault.NOT_DONE),
    ("invalid auth token", Fault.NO_TOKEN),
    ("user name is empty", Fault.NO_TOKEN),
    ("revision of auth store is old", Fault.NO_TOKEN),
    ("required revision has been compacted", Fault.COMPACTED),
    ("too many operations", Fault.TOO_LARGE),
    ("request is too large", Fault.TOO_LARGE),
    ("message larger than max", Fault.TOO_LARGE),
    ("database space exceeded", Fault.FULL),
    ("requested lease not found", Fault.LEASE_GONE),
)
_REFUSALS: Final = frozenset(
    {
        StatusCode.FAILED_PRECONDITION,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.OUT_OF_RANGE,
        StatusCode.PERMISSION_DENIED,
        StatusCode.UNAUTHENTICATED,
        StatusCode.UNIMPLEMENTED,
    }
)
_SILENCES: Final = frozenset({StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE})
_ITS_OWN_WORDS: Final = "etcdserver:"
_HAS_A_NEW_LEADER: Final = "etcdserver: leader changed"
_REMEDIES: Final = {
    Fault.FULL: "; compact and defragment it, then: etcdctl alarm disarm",
    Fault.NOT_DONE: "; is it running, and has it a quorum?",
}
ELSEWHERE: Final = frozenset({Fault.NOT_DONE, Fault.UNKNOWN, Fault.STALE})


class Compacted(StoreError):
    """The revision that was asked for is no longer kept."""


class Trouble(Exception):
    """A call to one member has failed."""

    def __init__(
        self,
        fault: Fault,
        member: str,
        reason: str,
        *,
        is_silent: bool = False,
        is_over: bool = False,
    ) -> None:
        """`is_silent`: nothing shows that the member runs and can be reached. `is_over`: it has a leader again, and may be asked."""
        super().__init__(f"etcd {member}: {reason}{_REMEDIES.get(fault, '')}")
        self.fault = fault
        self.is_silent = is_silent
        self.is_over = is_over
        self._member = member
        self._reason = reason

    def explained(self) -> StoreError:
        """As those see it who know of stores only."""
        match self.fault:
            case Fault.COMPACTED:
                return Compacted(str(self))
            case Fault.TOO_LARGE:
                return CommitTooLarge(str(self))
            case Fault.FULL:
                return StoreFull(str(self))
            case Fault.LEASE_GONE:
                return LeaseGone(str(self))
            case _:
                return StoreError(str(self))

    def before_the_question(self) -> "Trouble":
        """Whatever became of the greeting, the question was not asked."""
        fault = Fault.NOT_DONE if self.fault is Fault.UNKNOWN else self.fault
        return Trouble(fault, self._member, self._reason, is_silent=self.is_silent)

    def ambiguous(self) -> Ambiguous:
        return Ambiguous(f"{self}: the commit may have happened")


def trouble_of(member: str, code: StatusCode, details: str) -> Trouble:
    is_silent = code in _SILENCES and not details.startswith(_ITS_OWN_WORDS)
    for text, fault in _BY_TEXT:
        if text in details:
            return Trouble(fault, member, details, is_silent=is_silent)
    fault = Fault.REFUSED if code in _REFUSALS else Fault.UNKNOWN
    return Trouble(
        fault,
        member,
        f"{code.name.lower()}: {details}",
        is_silent=is_silent,
        is_over=_HAS_A_NEW_LEADER in details,
    )
