"""`ssl.principal.mapping.rules` (KIP-371): from a distinguished name to a principal's name.

The first rule that matches the whole name counts. Patterns run on google-re2, whose time is linear
in the length of the name, whatever the pattern. Lookaround and back references do not exist there.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

MAX_NAME_CHARACTERS: Final = 1024
MAX_RULES: Final = 100
_MAX_PATTERN_BYTES_OF_MEMORY: Final = 1 << 20
_DEFAULT: Final = "DEFAULT"
_RULE: Final = "RULE:"


class Match(Protocol):
    def group(self, number: int, /) -> str | None: ...
    def span(self) -> tuple[int, int]: ...


class Pattern(Protocol):
    """What `re2` and `re` have in common."""

    @property
    def groups(self) -> int: ...
    def fullmatch(self, text: str, /) -> Match | None: ...
    def search(self, text: str, position: int, /) -> Match | None: ...


Compile = Callable[[str], Pattern]


class NoMatchingRule(ValueError):
    """No rule applies to the name of a certificate: the connection is refused."""


class _Rule(NamedTuple):
    pattern: Pattern | None  # None: DEFAULT, which takes the name as it is
    replacement: tuple[str | int, ...]  # texts, and numbers of groups
    change_case: Callable[[str], str] | None


def compile_with_re2(pattern: str) -> Pattern:
    """Compile a pattern with google-re2, which is imported only where a rule has a pattern."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PATTERN_BYTES_OF_MEMORY
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"pattern {pattern!r} is not in RE2's syntax: {error}") from None
    return compiled


class MappingRules:
    """The compiled rules of one listener."""

    def __init__(self, setting: str, compile_pattern: Compile = compile_with_re2) -> None:
        """Raise ValueError if the setting is malformed: the broker must not start with it."""
        self.setting = setting
        self._rules = _Parser(setting, compile_pattern).parse()

    def principal_name(self, distinguished_name: str) -> str:
        if len(distinguished_name) > MAX_NAME_CHARACTERS:
            raise NoMatchingRule(
                f"name of {len(distinguished_name)} characters; the limit is {MAX_NAME_CHARACTERS}"
            )
        for rule in self._rules:
            name = _apply(rule, distinguished_name)
            if name:
                return name
        raise NoMatchingRule(f"No rules apply to {distinguished_name!r}, rules {self.setting!r}")


def _apply(rule: _Rule, name: str) -> str | None:
    """Return the mapped name, None if the rule does not match the whole name.

    As Java's `replaceAll`, which Kafka calls: every match within the name is replaced.
    """
    if rule.pattern is None:
        return name
    if rule.pattern.fullmatch(name) is None:
        return None
    pieces: list[str] = []
    end = 0
    for match in _matches(rule.pattern, name):
        begin, next_end = match.span()
        pieces.append(name[end:begin])
        pieces.extend(
            part if isinstance(part, str) else match.group(part) or "" for part in rule.replacement
        )
        end = next_end
    mapped = "".join((*pieces, name[end:]))
    return rule.change_case(mapped) if rule.change_case else mapped


def _matches(pattern: Pattern, text: str) -> Iterator[Match]:
    """Yield the matches that Java finds: after an empty one it goes on one character later."""
    position = 0
    while position <= len(text):
        match = pattern.search(text, position)
        if match is None:
            return
        yield match
        begin, end = match.span()
        position = end + 1 if begin == end else end


class _Parser:
    """Parses `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas."""

    def __init__(self, text: str, compile_pattern: Compile) -> None:
        self._text = text
        self._position = 0
        self._compile = compile_pattern

    def parse(self) -> tuple[_Rule, ...]:
        if not self._text.strip():
            return (_Rule(None, (), None),)
        rules = [self._rule()]
        while self._skip(","):
            if len(rules) == MAX_RULES:
                raise ValueError(f"more than {MAX_RULES} rules")
            rules.append(self._rule())
        if self._position < len(self._text):
            raise self._wrong()
        return tuple(rules)

    def _rule(self) -> _Rule:
        self._skip_space()
        if self._skip(_DEFAULT):
            self._skip_space()
            return _Rule(None, (), None)
        if not self._skip(_RULE):
            raise self._wrong()
        pattern = self._compile(self._until_slash())
        replacement = _parse_replacement(self._until_slash(), pattern.groups)
        change_case = str.lower if self._skip("L") else str.upper if self._skip("U") else None
        self._skip_space()
        return _Rule(pattern, replacement, change_case)

    def _until_slash(self) -> str:
        """Take the text up to the next slash. A backslash protects the character after it."""
        begin = self._position
        while self._text[self._position : self._position + 1] not in ("/", ""):
            self._position += 2 if self._text[self._position] == "\\" else 1
        if self._position >= len(self._text):
            raise self._wrong()
        self._position += 1
        return self._text[begin : self._position - 1]

    def _skip(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._position)
        self._position += len(expected) if found else 0
        return found

    def _skip_space(self) -> None:
        while self._text[self._position : self._position + 1].isspace():
            self._position += 1

    def _wrong(self) -> ValueError:
        return ValueError(
            f"ssl.principal.mapping.rules: no rule at position {self._position} of "
            f"{self._text!r}; rules are DEFAULT or RULE:pattern/replacement/[LU]"
        )


def _parse_replacement(text: str, group_count: int) -> tuple[str | int, ...]:
    """Parse Java's replacement syntax: `$1` is a group, a backslash protects a character.

    `$12` is group 1 and the text `2` where there are fewer than 12 groups. A number beyond the
    groups is text, as in Kafka.
    """
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\":
            if position == len(text):
                raise ValueError(f"replacement {text!r} ends with a backslash")
            parts.append(text[position])
            position += 1
        elif char == "$":
            digits = _digits(text, position)
            if not digits:
                raise ValueError(f"replacement {text!r} has a $ without a number; write \\$")
            if not group_count and digits.strip("0"):
                raise ValueError(f"replacement {text!r} names a group; the pattern has none")
            position, part = _group(digits, position, group_count)
            parts.append(part)
        else:
            parts.append(char)
    return tuple(parts)


def _digits(text: str, position: int) -> str:
    end = position
    while text[end : end + 1] in tuple("0123456789"):
        end += 1
    return text[position:end]


def _group(digits: str, position: int, group_count: int) -> tuple[int, str | int]:
    """Return the longest number that is a group, or the digits as text, and where they end."""
    for length in range(min(len(digits), 4), 0, -1):
        if int(digits[:length]) <= group_count:
            return position + length, int(digits[:length])
    return position + len(digits), f"${digits}"
