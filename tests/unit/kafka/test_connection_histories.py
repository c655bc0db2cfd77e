"""Any history of two connections: whatever peers send and read, and in whatever order requests end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.stage import (
    CODES,
    HOLDING,
    KINDS,
    LARGE,
    MB,
    SILENT,
    SMALL_BUFFER,
    Asked,
    staged,
)


class ConnectionMachine(RuleBasedStateMachine):
    """Two peers that send and read as they like, requests that end in any order, little memory."""

    @initialize()
    def begin(self) -> None:
        self._context = staged(memory_bytes=MB)
        self.stage = self._context.__enter__()
        self.peers = [self.stage.connect(send_buffer=SMALL_BUFFER) for _ in range(2)]
        self.scripts: list[list[tuple[str, int]]] = [[], []]

    @rule(
        who=st.integers(0, 1),
        kind=st.sampled_from(KINDS),
        padding=st.sampled_from([0, 10, 5000, LARGE, LARGE, 2 * LARGE]),
        answer_bytes=st.sampled_from([0, 0, 0, 100, 50_000]),
    )
    def ask(self, who: int, kind: str, padding: int, answer_bytes: int) -> None:
        number = len(self.scripts[who])
        self.peers[who].ask(number, kind, padding=padding, answer_bytes=answer_bytes)
        self.scripts[who].append((kind, answer_bytes))

    @rule(who=st.integers(0, 1), limit=st.sampled_from([1, 50, 1000, 70_000, 70_000, 1 << 20]))
    def send(self, who: int, limit: int) -> None:
        self.peers[who].send(limit)

    @rule(who=st.integers(0, 1), limit=st.sampled_from([1, 100, 10_000, 1 << 20]))
    def read(self, who: int, limit: int) -> None:
        self.peers[who].read(limit)

    @rule(who=st.integers(0, 1), choice=st.integers(0, 50))
    def finish(self, who: int, choice: int) -> None:
        waiting = self.stage.waiting(self.peers[who])
        if waiting:
            self.stage.finish(waiting[choice % len(waiting)])

    @rule(who=st.integers(0, 1), muted=st.booleans())
    def mute(self, who: int, muted: bool) -> None:
        connection = self.peers[who].connection
        if muted:
            connection.mute(3600)
        elif connection._unmuting is not None:
            connection._unmuting.cancel()
            connection._unmute()

    def handled(self, who: int) -> list[Asked]:
        return [asked for asked in self.stage.handled if asked.peer == self.peers[who].name]

    def expected(self, who: int) -> list[tuple[int, int, int]]:
        return [
            (number, CODES.get(kind, 0), 0 if kind in CODES else answer_bytes)
            for number, (kind, answer_bytes) in enumerate(self.scripts[who])
            if kind != SILENT
        ]

    @invariant()
    def requests_are_taken_and_answered_in_order(self) -> None:
        for who, peer in enumerate(self.peers):
            handled = self.handled(who)
            assert [asked.number for asked in handled] == list(range(len(handled)))
            for asked in handled[:-1]:
                assert not (asked.kind in HOLDING and asked.waits)
            answers = peer.answers()
            assert answers == self.expected(who)[: len(answers)]
            assert peer.connection in self.stage.listener._connections

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.stage.loop.memory.used_bytes <= MB

    def teardown(self) -> None:
        try:
            self.everything_is_answered_in_the_end()
        finally:
            self._context.__exit__(None, None, None)

    def everything_is_answered_in_the_end(self) -> None:
        for who in (0, 1):
            self.mute(who, False)
        for _ in range(3):
            for peer in self.peers:
                peer.exchange()
                while waiting := self.stage.waiting(peer):
                    self.stage.finish(waiting[0])
                    peer.exchange()
        for who, peer in enumerate(self.peers):
            assert peer.answers() == self.expected(who)
            peer.socket.close()
        self.stage.tick()
        memory = self.stage.loop.memory
        assert (memory.used_bytes, memory.waiting) == (0, 0)
        assert not self.stage.listener._connections


ConnectionMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)
TestConnectionHistories = ConnectionMachine.TestCase
