"""Splits a request that names many things into requests that name few, and joins their responses.

Only for APIs that handle each element by itself. A path leads to the elements: the array of the message, then the array
in each of its elements, and so on.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.partitions.turns import Turns
from penstock.model.steps import Steps
from penstock.wire.schema import Message, Struct

_FREED_AT_ONCE: Final = 2000


class Part(NamedTuple):
    request: Any
    continued: int  # on so many levels of the path its first element goes on where the last part's last ended


class Parts:
    """Where the elements are in requests and responses of one API, and how many are handled at once."""

    def __init__(
        self,
        request: Sequence[str],
        response: Sequence[str] | None = None,
        *,
        at_once: int,
        whole_upto: int | None = None,
        is_queued: bool = True,
        otherwise: "Parts | None" = None,
        distinct: Callable[[Any], Hashable] | None = None,
    ) -> None:
        """`whole_upto`: a request of so many elements is not split (default: `at_once`).

        `is_queued`: few such requests are objects in memory at the same time; brokers' own do not wait for clients'.

        `otherwise`: for versions that leave the first array empty. `distinct`: the key of an element; of elements with
        the same key only the first is handled, so that a response is not many times what there is to tell.
        """
        self._request = tuple(request)
        self._response = tuple(response or request)
        self._otherwise = otherwise
        self._distinct = distinct
        self.at_once = at_once
        self.whole_upto = at_once if whole_upto is None else whole_upto
        self.is_queued = is_queued

    def are_many(self, request: Message) -> bool:
        """Whether the request is worth splitting. Called for each request."""
        path = self._request
        outer = getattr(request, path[0])
        if outer and len(outer) == 1 and len(path) == 2:
            inner = getattr(outer[0], path[1])
            return inner is not None and len(inner) > self.whole_upto
        if not outer:
            return self._otherwise is not None and self._otherwise.are_many(request)
        if len(path) == 1:
            return len(outer) > self.whole_upto
        return _weight(outer, path[1:], self.whole_upto) > self.whole_upto

    def split(self, request: Message, seen: set[Hashable] | None = None) -> Iterator[Part]:
        """Takes the request apart: its arrays are empty in the end. `seen`: collects the keys of elements."""
        name, *path = self._request
        if self._otherwise is not None and not getattr(request, name):
            yield from self._otherwise.split(request, seen)
            return
        seen = set() if seen is None else seen
        for elements, continued in _cut(getattr(request, name), path, self.at_once):
            some = elements if self._distinct is None else _unseen(elements, self._distinct, seen)
            if some:
                yield Part(_with(request, name, some), continued)

    def without_records(self, request: Message) -> Any:
        """Return a copy that names the same partitions, and does not keep the frame in memory."""
        return _without_records(request, self._request)

    def join(self, whole: Message, more: Message, continued: int) -> None:
        """Add a part's response to those of the parts before it."""
        name, *path = self._response
        if self._otherwise is not None and not getattr(whole, name):
            self._otherwise.join(whole, more, continued)
            return
        _keep_error(whole, more)
        _join(getattr(whole, name), getattr(more, name), path, continued)
        for other, field in type(whole).fields.items():
            if field.kind == "array" and other != name:
                found = getattr(whole, other)
                found += [it for it in getattr(more, other) or () if it not in found]

    def free(self, response: Message) -> Steps[None]:
        """Free a large response in steps, once it is encoded."""
        name, *path = self._response
        if self._otherwise is not None and not getattr(response, name):
            return self._otherwise.free(response)
        return dismantle(getattr(response, name), path)


def _unseen(
    elements: list[Any], key_of: Callable[[Any], Hashable], seen: set[Hashable]
) -> list[Any]:
    keyed = {key: it for it in elements if (key := key_of(it)) not in seen}
    seen.update(keyed)
    return list(keyed.values())


def _weight(elements: Sequence[Any] | None, path: Sequence[str], enough: int) -> int:
    """How many leaves there are; it stops counting once it has more than enough."""
    if not path:
        return len(elements or ())
    weight = 0
    for element in elements or ():
        weight += max(1, _weight(getattr(element, path[0]), path[1:], enough))
        if weight > enough:
            break
    return weight


def _cut(elements: list[Any], path: Sequence[str], limit: int) -> Iterator[tuple[list[Any], int]]:
    """Runs of elements with up to `limit` leaves each. An element with more is cut, each piece a run of its own.

    It empties the lists on its way: to free them all at once would take long.
    """
    elements.reverse()
    if not path:
        while elements:
            run = elements[-limit:]
            del elements[-limit:]
            run.reverse()
            yield run, 0
        return
    name, rest = path[0], path[1:]
    run, room = [], limit
    while elements:
        element = elements[-1]
        inner = getattr(element, name)
        weight = max(1, _weight(inner, rest, limit))
        if weight > room and run:
            yield run, 0
            run, room = [], limit
            continue
        elements.pop()
        if weight <= limit:
            run.append(element)
            room -= weight
            continue
        is_later = False
        for piece, below in _cut(inner, rest, limit):
            yield [_with(element, name, piece)], 1 + below if is_later else 0
            is_later = True
    if run:
        yield run, 0


def emptied(keys: set[Hashable]) -> Steps[None]:
    """Free a large set in steps."""
    while keys:
        for _ in range(min(_FREED_AT_ONCE, len(keys))):
            keys.pop()
        yield


def dismantle(elements: list[Any], path: Sequence[str]) -> Steps[None]:
    """Free a large tree in steps."""
    while elements:
        some = elements[-_FREED_AT_ONCE:]
        del elements[-_FREED_AT_ONCE:]
        for element in some if path else ():
            inner = getattr(element, path[0])
            if inner:
                yield from dismantle(inner, path[1:])
        if len(some) == _FREED_AT_ONCE:
            yield


def _with(struct: Struct, name: str, value: Any) -> Any:
    """A copy with another value of one field."""
    fields = {field: getattr(struct, field) for field in type(struct).fields}
    return type(struct)(**{**fields, name: value})


def _without_records(element: Any, path: Sequence[str]) -> Any:
    if not path:
        return _with(element, "records", None)
    inner = [_without_records(one, path[1:]) for one in getattr(element, path[0])]
    return _with(element, path[0], inner)


def _join(whole: list[Any], more: list[Any], path: Sequence[str], continued: int) -> None:
    if continued and whole and more:
        last, first, *rest = whole[-1], *more
        _keep_error(last, first)
        if path:
            _join(getattr(last, path[0]), getattr(first, path[0]), path[1:], continued - 1)
        whole += rest
    else:
        whole += more


def _keep_error(whole: Any, more: Any) -> None:
    if getattr(more, "error_code", 0) and not whole.error_code:
        whole.error_code = more.error_code
        if "error_message" in type(whole).fields:
            whole.error_message = more.error_message


async def handle_parts(
    parts: Parts,
    request: Message,
    handle: Callable[[Any], Awaitable[Message | None]],
    turns: Turns,
) -> Message | None:
    """Handle a request part by part, other work in between, and join the responses."""
    whole: Message | None = None
    seen: set[Hashable] = set()
    for part in parts.split(request, seen):
        reply = await handle(part.request)
        if whole is None or reply is None:
            whole = reply
        else:
            parts.join(whole, reply, part.continued)
        await turns.run(_pause())
    await turns.run(emptied(seen))
    return whole


async def visit_parts(
    parts: Parts, request: Message, visit: Callable[[Any], None], turns: Turns
) -> None:
    """Call `visit` with each part of a request, other work in between. It empties the request."""
    for part in parts.split(request):
        visit(part.request)
        await turns.run(_pause())


def _pause() -> Steps[None]:
    """Nothing, in two steps: other work runs in between."""
    yield
