"""The matcher of topic exchanges: a trie of the words of binding keys.

`*` stands for one word, `#` for any number of words. Matching keeps the set of nodes that the words
so far can lead to, so its time is bounded by words x nodes, however many `#` a key has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.amqp.routing.bindings import Binding, Destination, DestinationCounts, uncount
from penstock.amqp.routing.messages import RoutedMessage


class _Node:
    """The bindings whose keys lead here, and the nodes for the words that may follow."""

    __slots__ = ("counts", "hash", "loops", "star", "words")

    def __init__(self, *, loops: bool = False) -> None:
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.loops = loops  # the node of a `#`: it stays active, whatever the word
        self.counts: DestinationCounts | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.star or self.hash or self.counts)

    def child(self, word: str) -> _Node | None:
        if word == "*":
            return self.star
        return self.hash if word == "#" else self.words.get(word)

    def make_child(self, word: str) -> _Node:
        node = self.child(word)
        if node is None:
            node = _Node(loops=word == "#")
            if word == "*":
                self.star = node
            elif word == "#":
                self.hash = node
            else:
                self.words[word] = node
        return node

    def drop_child(self, word: str) -> None:
        if word == "*":
            self.star = None
        elif word == "#":
            self.hash = None
        else:
            del self.words[word]


def split_words(key: str) -> list[str]:
    """Return the words of a key. The empty key has none."""
    return key.split(".") if key else []


class TopicMatcher:
    by_key_only = True

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in split_words(binding.routing_key):
            node = node.make_child(word)
        if node.counts is None:
            node.counts = Counter()
        node.counts[binding.destination] += 1

    def remove(self, binding: Binding) -> None:
        words = split_words(binding.routing_key)
        path = [self._root]
        for word in words:
            node = path[-1].child(word)
            assert node is not None, "only added bindings are removed"
            path.append(node)
        counts = path[-1].counts
        assert counts is not None, "only added bindings are removed"
        uncount(counts, binding.destination)
        for at in range(len(words), 0, -1):
            if not path[at].is_empty:
                break
            path[at - 1].drop_child(words[at - 1])

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        active = _with_hashes([self._root])
        for word in split_words(routing_key):
            following = []
            for node in active:
                if node.loops:
                    following.append(node)
                child = node.words.get(word)
                if child is not None:
                    following.append(child)
                if node.star is not None:
                    following.append(node.star)
            active = _with_hashes(following)
            if not active:
                return ()
        found: dict[Destination, None] = {}
        for node in active:
            if node.counts:
                found.update(dict.fromkeys(node.counts))
        return found


def _with_hashes(nodes: list[_Node]) -> dict[_Node, None]:
    """Add the nodes that are reached without a word: a `#` also stands for no words."""
    reached: dict[_Node, None] = {}
    for node in nodes:
        reached[node] = None
        while node.hash is not None and node.hash not in reached:
            node = node.hash
            reached[node] = None
    return reached
