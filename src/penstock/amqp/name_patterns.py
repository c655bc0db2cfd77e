"""The patterns of policies: regular expressions that are searched for in the names of queues.

RabbitMQ's patterns are Perl's. Matching here takes linear time, whatever the pattern, so a policy
cannot stop the broker; lookarounds are supported only at the start of a pattern, as in
`^(?!amq\\.).*`, which is what people use them for.
"""

from __future__ import annotations

from typing import Final

from penstock.amqp.failures import precondition_failed
from penstock.groups.patterns import InvalidPattern, Pattern

_OTHER: Final = "\N{REPLACEMENT CHARACTER}"  # stands for every character that no pattern names
_ASCII: Final = frozenset(map(chr, range(128)))
_NEGATIVE, _POSITIVE = "(?!", "(?="
MAX_PATTERN_CHARACTERS: Final = 1024
MAX_LOOKAHEADS: Final = 8


class NamePattern:
    """A compiled pattern. `matches` searches: an unanchored pattern may match anywhere."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise _invalid(text[:32] + "…", f"longer than {MAX_PATTERN_CHARACTERS} characters")
        self.text = text
        self._alphabet = _ASCII | frozenset(text) | {_OTHER}
        lookaheads, rest = _split_lookaheads(text)
        self._lookaheads = [
            (is_wanted, self._compile(f"^(?:{inner})")) for is_wanted, inner in lookaheads
        ]
        self._pattern = self._compile(rest)

    def matches(self, name: str) -> bool:
        known = "".join(char if char in self._alphabet else _OTHER for char in name)
        for is_wanted, pattern in self._lookaheads:
            if pattern.matches(known) is not is_wanted:
                return False
        return self._pattern.matches(known)

    def _compile(self, text: str) -> Pattern:
        try:
            Pattern(text, self._alphabet)  # alone, so that an unmatched ) is not hidden below
            return Pattern(f"(?:.*)(?:{text})(?:.*)", self._alphabet)
        except InvalidPattern as error:
            raise _invalid(self.text, str(error)) from None


def _split_lookaheads(text: str) -> tuple[list[tuple[bool, str]], str]:
    """Take the lookaheads that follow a leading `^` out of a pattern."""
    found: list[tuple[bool, str]] = []
    rest = text.removeprefix("^")
    if rest == text:
        return found, text
    while rest.startswith((_NEGATIVE, _POSITIVE)) and len(found) < MAX_LOOKAHEADS:
        end = _closing(rest)
        if end < 0:
            break
        found.append((rest.startswith(_POSITIVE), rest[len(_NEGATIVE) : end]))
        rest = rest[end + 1 :]
    if found and "|" in _outside_groups(rest):
        raise _invalid(text, "a lookahead that only one alternative has")
    return found, f"^{rest}"


def _closing(text: str) -> int:
    """Return where the group that begins `text` is closed, or -1."""
    depth, in_class, at = 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += text.startswith("]", at + 1) or 2 * text.startswith("^]", at + 1)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1


def _outside_groups(text: str) -> str:
    """Return the text without its groups and escaped characters."""
    outside, at = [], 0
    while at < len(text):
        if text[at] == "(":
            end = _closing(text[at:])
            if end < 0:
                break
            at += end + 1
            continue
        if text[at] == "\\":
            at += 2
            continue
        outside.append(text[at])
        at += 1
    return "".join(outside)


def _invalid(text: str, reason: str) -> Exception:
    return precondition_failed(f"pattern {text!r} is not supported: {reason}")
