"""Regular expressions over topic names, in RE2's syntax and with RE2's promise: linear time, whatever the pattern.

A pattern comes from a client and runs on the event loop, so backtracking is out of the question. A topic
name has 65 possible characters, so a pattern becomes an automaton over them, made as names need it. For
other names, such as transactional ids, whoever asks says which characters they have.
"""

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode

LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS: Final = frozenset("0123456789")
ALPHABET: Final = LETTERS | DIGITS | frozenset("._-")  # of topic names
MAX_LENGTH: Final = 8192
MAX_REPEAT: Final = 1000  # as in RE2
MAX_STEPS: Final = 1000  # of a pattern with its repeats written out: a character may try them all
_MAX_WAYS: Final = 5000  # of the automaton that are remembered: less than 4 MB
_MAX_NESTING: Final = 100
_MAX_SET_WORK: Final = 300_000  # characters looked at to make the sets of one pattern
_WORD: Final = LETTERS | DIGITS | {"_"}
_SPACE: Final = frozenset(" \t\n\f\r")
_CLASSES: Final = {"d": DIGITS, "w": _WORD, "s": _SPACE}  # a capital letter: all but these
_POSIX: Final = {
    "alnum": LETTERS | DIGITS,
    "alpha": LETTERS,
    "digit": DIGITS,
    "lower": frozenset(c for c in LETTERS if c.islower()),
    "upper": frozenset(c for c in LETTERS if c.isupper()),
    "punct": frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "word": _WORD,
    "xdigit": DIGITS | frozenset("abcdefABCDEF"),
    "space": _SPACE | {"\v"},
}


class InvalidPattern(BrokerError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION


# What a pattern says: a tree -------------------------------------------------------------------


class Chars(NamedTuple):
    chars: frozenset[str]


class Edge(NamedTuple):
    at_end: bool


class Sequence(NamedTuple):
    parts: "tuple[Node, ...]"


class Choice(NamedTuple):
    parts: "tuple[Node, ...]"


class Repeat(NamedTuple):
    part: "Node"
    least: int
    most: int | None


Node = Chars | Edge | Sequence | Choice | Repeat

# Matches the empty name only. The parser leaves it out wherever it can, so that every node of a tree
# compiles to at least one step, and the limit on steps bounds the time: ((){1000}){1000} is nothing.
_NOTHING: Final = Sequence(())


class _Parser:
    def __init__(self, text: str, alphabet: frozenset[str]) -> None:
        self.text = text
        self.alphabet = alphabet
        self.position = 0
        self.ignore_case = False
        self.nesting = 0
        self.set_work = 0

    def parse(self) -> Node:
        node = self._choice()
        if self.position < len(self.text):
            raise self._wrong("an unmatched )")
        return node

    def _wrong(self, what: str) -> InvalidPattern:
        return InvalidPattern(f"pattern {self.text!r} has {what} at position {self.position}")

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._wrong("no end")
        self.position += 1
        return char

    def _skip(self, expected: str) -> bool:
        found = self.text.startswith(expected, self.position)
        if found:
            self.position += len(expected)
        return found

    def _choice(self) -> Node:
        parts = [self._sequence()]
        has_nothing = parts[0] is _NOTHING
        while self._skip("|"):
            part = self._sequence()
            if part is not _NOTHING or not has_nothing:
                parts.append(part)
            has_nothing = has_nothing or part is _NOTHING
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            part = self._repeated(self._atom())
            if part is not _NOTHING:
                parts.append(part)
        if not parts:
            return _NOTHING
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        counts = self._repeat_counts()
        if counts is None:
            return node
        self._skip("?")  # lazy or greedy: a whole match is the same
        if self._repeat_counts() is not None:
            raise self._wrong("a repeat of a repeat, which RE2 does not know,")
        return _NOTHING if node is _NOTHING or counts[1] == 0 else Repeat(node, *counts)

    def _repeat_counts(self) -> tuple[int, int | None] | None:
        """Take a repeat and return how often it repeats; None if the next character is something else."""
        match self._peek():
            case "*":
                counts: tuple[int, int | None] | None = (0, None)
            case "+":
                counts = (1, None)
            case "?":
                counts = (0, 1)
            case "{":
                counts = self._counts()
            case _:
                return None
        if counts is not None:
            self._take()
        return counts

    def _counts(self) -> tuple[int, int | None] | None:
        """{2}, {2,} or {2,5}, up to its closing brace; anything else is a literal brace."""
        end = self.text.find("}", self.position)
        least, comma, most = self.text[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(least) or not (_is_number(most) or not most):
            return None
        self.position = end
        low = _count(least)
        high = low if not comma else _count(most) if most else None
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            raise self._wrong(f"a repeat count outside 0 to {MAX_REPEAT}")
        return low, high

    def _atom(self) -> Node:
        match self._take():
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case ".":
                return Chars(self.alphabet)
            case "^":
                return Edge(at_end=False)
            case "$":
                return Edge(at_end=True)
            case "\\":
                return self._escape()
            case "*" | "+" | "?" as char:
                self.position -= 1
                raise self._wrong(f"nothing to repeat before {char}")
            case char:
                return self._literal(char)

    def _all_but(self, chars: AbstractSet[str]) -> frozenset[str]:
        self._look_through_alphabet()
        return self.alphabet - chars

    def _look_through_alphabet(self) -> None:
        self.set_work += len(self.alphabet)
        if self.set_work > _MAX_SET_WORK:
            raise self._wrong(f"too many sets of {len(self.alphabet)} characters")

    def _literal(self, char: str) -> Chars:
        chars = {char, char.swapcase()} if self.ignore_case else {char}
        return Chars(self.alphabet & chars)

    def _escape(self) -> Node:
        char = self._take()
        if char == "A":
            return Edge(at_end=False)
        if char == "z":
            return Edge(at_end=True)
        if char == "Q":
            end = self.text.find("\\E", self.position)
            stop = len(self.text) if end < 0 else end
            quoted = self.text[self.position : stop]
            self.position = stop if end < 0 else stop + 2
            return Sequence(tuple(self._literal(c) for c in quoted)) if quoted else _NOTHING
        chars = self._escaped_set(char)
        return Chars(chars) if chars is not None else self._literal(char)

    def _escaped_set(self, char: str) -> frozenset[str] | None:
        """What \\d and the like stand for; None: the character itself."""
        if char.lower() in _CLASSES:
            found = _CLASSES[char.lower()]
            return self.alphabet & found if char.islower() else self._all_but(found)
        if char.isalnum():
            raise self._wrong(f"\\{char}, which is not supported,")
        return None

    def _group(self) -> Node:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise self._wrong(f"groups nested deeper than {_MAX_NESTING}")
        outer_case = self.ignore_case
        if self._skip("?") and self._group_kind():
            self.nesting -= 1
            return _NOTHING
        node = self._choice()
        if not self._skip(")"):
            raise self._wrong("a group without )")
        self.ignore_case = outer_case
        self.nesting -= 1
        return node

    def _group_kind(self) -> bool:
        """After `(?`: true when it only sets flags for what follows, and is at its end."""
        if self._skip(":"):
            return False
        if self._skip("P<") or (
            self._skip("<") and self._peek() not in ("=", "!")
        ):  # a named group
            end = self.text.find(">", self.position)
            if not self.text[self.position : max(end, 0)].isidentifier():
                raise self._wrong("a group with a bad name")
            self.position = end + 1
            return False
        on = True
        while self._peek() not in (":", ")"):
            match self._take():
                case "i":
                    self.ignore_case = on
                case "s" | "m" | "U":
                    pass  # no difference: topic names have no lines, and matches are whole
                case "-":
                    on = False
                case _:
                    raise self._wrong("a kind of group that RE2 does not know")
        return self._take() == ")"

    def _class(self) -> frozenset[str]:
        negated = self._skip("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            chars |= self._class_item()
        self._take()
        if self.ignore_case:
            chars |= {c.swapcase() for c in chars}
        return self._all_but(chars) if negated else self.alphabet & chars

    def _class_item(self) -> frozenset[str]:
        if self._skip("[:"):
            end = self.text.find(":]", self.position)
            named = self.text[self.position : max(end, 0)]
            found = _POSIX.get(named.removeprefix("^"))
            if found is None:
                raise self._wrong(f"an unknown class [:{named}:]")
            self.position = end + 2
            return self._all_but(found) if named.startswith("^") else found
        low = self._take()
        if low == "\\":
            low = self._take()
            chars = self._escaped_set(low)
            if chars is not None:
                return chars
        if self._peek() != "-" or self.text[self.position + 1 : self.position + 2] in ("]", ""):
            return frozenset(low)
        self._take()
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise self._wrong(f"a range {low}-{high} that is the wrong way round")
        self._look_through_alphabet()
        return frozenset(c for c in self.alphabet if low <= c <= high)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()


def _count(digits: str) -> int:
    """The number, or one above the limit: a number of thousands of digits is no int to Python."""
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) <= len(str(MAX_REPEAT)) else MAX_REPEAT + 1


# What a pattern does: steps, and an automaton over sets of them -----------------------------------


_END: Final = 0  # the step that nothing follows


class _Step(NamedTuple):
    chars: frozenset[str] | None  # consumes one of these, or nothing
    edge: Edge | None  # passes only at this edge
    then: tuple[int, ...]


class _Compiler:
    def __init__(self, text: str) -> None:
        self.text = text
        self.steps: list[_Step] = []

    def add(self, chars: frozenset[str] | None, edge: Edge | None, then: tuple[int, ...]) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise InvalidPattern(f"pattern {self.text!r} is larger than {MAX_STEPS} steps")
        self.steps.append(_Step(chars, edge, then))
        return len(self.steps) - 1

    def compile(self, node: Node, then: int) -> int:
        """The step at which `node` begins, if `then` follows it."""
        match node:
            case Chars(chars):
                return self.add(chars, None, (then,))
            case Edge():
                return self.add(None, node, (then,))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self.compile(part, then)
                return then
            case Choice(parts):
                return self.add(None, None, tuple(self.compile(part, then) for part in parts))
            case Repeat():
                return self._repeat(node, then)

    def _repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            loop = self.add(None, None, ())
            self.steps[loop] = _Step(None, None, (self.compile(node.part, loop), then))
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self.add(None, None, (self.compile(node.part, then), end))
        for _ in range(node.least):
            then = self.compile(node.part, then)
        return then


def _bit(number: int) -> int:
    return 1 << number


def _reached(steps: list[_Step], *, at_start: bool = False, at_end: bool = False) -> list[int]:
    """From each step, without a character: those that wait for one, or for the end. A set of steps is a
    number with a bit for each, so that one of a thousand takes no more than 160 bytes."""
    found = [_bit(number) if _waits(number, step) else 0 for number, step in enumerate(steps)]
    passed = [
        (number, step.then)
        for number, step in enumerate(steps)
        if step.chars is None and (step.edge is None or (at_end if step.edge.at_end else at_start))
    ]
    before: list[int] = []
    while found != before:  # loops lead backwards
        before = found.copy()
        for number, then in (*passed, *reversed(passed)):
            for following in then:
                found[number] |= found[following]
    return found


def _waits(number: int, step: _Step) -> bool:
    return number == _END or step.chars is not None or (step.edge is not None and step.edge.at_end)


class Pattern:
    """A compiled pattern. It matches whole names only."""

    __slots__ = (
        "_after",
        "_by_chars",
        "_consuming",
        "_ending",
        "_members",
        "_numbers",
        "_rows",
        "_start",
        "_way_count",
        "text",
    )

    def __init__(self, text: str, alphabet: frozenset[str] = ALPHABET) -> None:
        """Of `alphabet` are the names that it will be asked about."""
        if len(text) > MAX_LENGTH:
            raise InvalidPattern(
                f"the pattern has {len(text)} characters; at most {MAX_LENGTH} are allowed"
            )
        self.text = text
        compiler = _Compiler(text)
        end = compiler.add(None, None, ())
        assert end == _END
        start = compiler.compile(_Parser(text, alphabet).parse(), end)
        self._lay_out(compiler.steps, start)
        self._forget()

    def _lay_out(self, steps: list[_Step], start: int) -> None:
        """What is asked of the steps for each character, as sets of them."""
        reached = _reached(steps)
        self._start = _reached(steps, at_start=True)[start]
        self._after = [reached[step.then[0]] if step.then else 0 for step in steps]
        self._ending = 0  # from which the end is reached at the end of a name
        for number, reached_last in enumerate(_reached(steps, at_end=True)):
            if reached_last & _bit(_END):
                self._ending |= _bit(number)
        self._by_chars: dict[frozenset[str], int] = {}
        for number, step in enumerate(steps):
            if step.chars:
                known = self._by_chars.get(step.chars, 0)
                self._by_chars[step.chars] = known | _bit(number)

    def matches(self, name: str) -> bool:
        state = 0
        for char in name:
            following = self._rows[state].get(char)
            state = self._follow(state, char) if following is None else following
        return bool(self._members[state] & self._ending)

    def _forget(self) -> None:
        self._numbers: dict[int, int] = {}
        self._members: list[int] = []  # of a state: the steps it stands for
        self._rows: list[dict[str, int]] = []
        self._way_count = 0
        self._consuming: dict[str, int] = {}  # by character: the steps that take it
        self._number(self._start)

    def _follow(self, state: int, char: str) -> int:
        """The state after `char`: every step in `state` that takes it leads on."""
        moving = self._members[state] & self._taking(char)
        steps = 0
        while moving:
            lowest = moving & -moving
            steps |= self._after[lowest.bit_length() - 1]
            moving ^= lowest
        if self._way_count >= _MAX_WAYS:
            self._forget()
            return self._number(steps)
        self._way_count += 1
        number = self._rows[state][char] = self._number(steps)
        return number

    def _taking(self, char: str) -> int:
        taking = self._consuming.get(char)
        if taking is None:
            taking = 0
            for chars, steps in self._by_chars.items():
                if char in chars:
                    taking |= steps
            self._consuming[char] = taking
        return taking

    def _number(self, steps: int) -> int:
        number = self._numbers.setdefault(steps, len(self._rows))
        if number == len(self._rows):
            self._members.append(steps)
            self._rows.append({})
        return number
