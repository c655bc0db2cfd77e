"""What a row of the table of APIs says, and the codecs that come with it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.kafka.context import Context
from penstock.kafka.forwarding import at_controller
from penstock.kafka.parts import Parts
from penstock.kafka.preparation import Preparation
from penstock.kafka.slices import Slices
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import Steps
from penstock.records.batch import HEADER_SIZE
from penstock.wire.api_keys import ApiKey
from penstock.wire.fields import NEVER, Chunk
from penstock.wire.header import RequestHeader
from penstock.wire.schema import (
    Message,
    decode_for,
    decode_in_steps,
    encode_for,
    encode_in_steps,
)

MAX_ELEMENTS: Final = 10_000  # of all arrays of a request, where its row says nothing else
NEVER_BYTES: Final = 1 << 62
PLAIN_BYTES: Final = 16 << 10  # a larger frame is decoded in steps, likewise
_LARGE_SLICED_BYTES: Final = 4 << 20  # a larger frame is appended in slices, however few they are
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Handle = Callable[[Request, Context], Response | Awaitable[Response | None] | None]
Refuse = Callable[[Request, BrokerError], Response]


class Together(NamedTuple):
    """Requests that were handled as one."""

    replies: Sequence[tuple[int, Any]]  # to each of them, with its correlation id, in order
    size_bytes: int  # of all but the first, as they arrived


# a request, its frame, where its body begins in it, and what arrived after it
HandleTogether = Callable[[Request, Context, memoryview, int, memoryview], Together | None]


class Known(Protocol):
    """The request that one connection sends again and again, but for some numbers."""

    request: Any

    def recognise(self, frame: memoryview) -> RequestHeader | None:
        """Its header, if this is it; `handle` does with `request` what is asked for then."""

    def handle(self, request: Any, context: Context) -> Any: ...

    def learn(self, header: RequestHeader, request: Any, frame: memoryview, body_at: int) -> None:
        """A request of that API which was not recognised."""


class Api(Generic[Request, Response]):
    """One row of the table, with its codecs at hand."""

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        request: type[Request],
        response: type[Response],
        handle: Handle[Request, Response],
        refuse: Refuse[Request, Response],
        *,
        pipelined: bool,
        forwarded: bool,
        needs: tuple[str, int] | None,
        together: HandleTogether[Request] | None,
        known: Callable[[], Known] | None,
        parts: Parts | None,
        preparation: Preparation | None,
        slices: Slices | None,
        max_elements: int,
        plain_bytes: int,
    ) -> None:
        self.key = key
        self.name = request.__name__.removesuffix("Request")
        self.min_version, self.max_version = versions
        self.carry_out = handle
        self.handle = at_controller(response, handle) if forwarded else handle
        self.forwarded = forwarded  # only the controller carries it out
        self.needs = needs  # a feature, and its least level: else nobody hears of this API
        self.refuse = refuse
        self.together = together  # handles it with those like it that follow; None: not so now
        self.known = known  # of a connection; None: each request is decoded
        self.pipelined = pipelined  # later requests may begin while its answer is still awaited
        self.slices = slices  # appends many batches in slices; None: in one turn
        self.parts = parts = slices.parts if slices is not None else parts  # None: handled whole
        self.preparation = preparation  # of a request that is handled in parts
        # a smaller frame has no more elements than are handled at once
        self.few_bytes = _few_bytes(parts, slices)
        self.large_bytes = NEVER_BYTES if slices is None else _LARGE_SLICED_BYTES
        self.are_many = _never if parts is None else parts.are_many
        self.max_elements = max_elements  # of all arrays of a request
        self.plain_bytes = plain_bytes  # a larger frame is decoded in steps
        self._flexible_header_from = (
            response.flexible_from if key != ApiKey.API_VERSIONS else NEVER  # KIP-511
        )
        self._request = request
        self._response = response
        self._decoders: dict[int, Callable[[memoryview, int], tuple[Request, int]]] = {}
        self._encoders: dict[int, Callable[[Response, list[Chunk]], None]] = {}

    def decode(self, version: int) -> Callable[[memoryview, int], tuple[Request, int]]:
        decoder = self._decoders.get(version)
        if decoder is None:
            decoder = self._decoders[version] = decode_for(self._request, version)
        return decoder

    def encode(self, version: int) -> Callable[[Response, list[Chunk]], None]:
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = self._encoders[version] = encode_for(self._response, version)
        return encoder

    def decode_in_steps(
        self, version: int
    ) -> Callable[[memoryview, int, int], Steps[tuple[Request, int]]]:
        return decode_in_steps(self._request, version)

    def encode_in_steps(self, version: int) -> Callable[[Response, list[Chunk]], Steps[None]]:
        return encode_in_steps(self._response, version)

    def has_flexible_response_header(self, version: int) -> bool:
        return version >= self._flexible_header_from


def row(
    key: ApiKey,
    versions: tuple[int, int],
    request: type[Request],
    response: type[Response],
    handle: Handle[Request, Response],
    *,
    refuse: Refuse[Request, Response] | None = None,
    pipelined: bool = False,
    forwarded: bool = False,
    needs: tuple[str, int] | None = None,
    together: HandleTogether[Request] | None = None,
    known: Callable[[], Known] | None = None,
    parts: Parts | None = None,
    preparation: Preparation | None = None,
    slices: Slices | None = None,
    max_elements: int = MAX_ELEMENTS,
    plain_bytes: int = PLAIN_BYTES,
) -> Api[Any, Any]:
    """One row. Its own type variables make mypy match the handler with the request."""

    def refuse_whole(_: Request, error: BrokerError) -> Response:
        """For responses with one code at the top."""
        fields: dict[str, Any] = {"error_code": error.code}
        if "error_message" in response.fields:
            fields["error_message"] = str(error)
        return response(**fields)

    assert refuse or "error_code" in response.fields, f"{response.__name__} needs its own refusal"
    return Api(
        key,
        versions,
        request,
        response,
        handle if needs is None else _from_level(*needs, handle),
        refuse or refuse_whole,
        pipelined=pipelined,
        forwarded=forwarded,
        needs=needs,
        together=together,
        known=known,
        parts=parts,
        preparation=preparation,
        slices=slices,
        max_elements=max_elements,
        plain_bytes=plain_bytes,
    )


def _few_bytes(parts: Parts | None, slices: Slices | None) -> int:
    if parts is None:
        return NEVER_BYTES
    # partitions without a batch are smaller, and rejected in no time
    return parts.whole_upto * (1 if slices is None else HEADER_SIZE)


def _never(_: Message) -> bool:
    return False


def _from_level(
    feature: str, least: int, handle: Handle[Request, Response]
) -> Handle[Request, Response]:
    def handled(request: Request, context: Context) -> Response | Awaitable[Response | None] | None:
        level = context.cluster.level(feature)
        if level < least:
            raise BrokerError(
                f"this cluster has {feature} at level {level}, and that needs {least}:"
                f" penstock cluster features upgrade --to {feature}={least}",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return handle(request, context)

    return handled
