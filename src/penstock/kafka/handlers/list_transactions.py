"""ListTransactions: the transactional ids that this broker coordinates and the client may see."""

from collections.abc import Awaitable, Callable

from penstock.groups.patterns import Pattern
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.model.steps import Steps
from penstock.transactions.state import AT_REST, Status, Transaction
from penstock.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_STEP_TRANSACTIONS = 1000
_STATES = {status.title for status in Status}


def handle(
    request: ListTransactionsRequest, context: Context
) -> ListTransactionsResponse | Awaitable[ListTransactionsResponse]:
    if context.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return context.replicas.turns.begin(_list(request, context))


def _list(request: ListTransactionsRequest, context: Context) -> Steps[ListTransactionsResponse]:
    known = list(context.transactions.transactions())
    is_wanted = _filter(request, known, context)
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES]
    )
    for number, found in enumerate(known, 1):
        if is_wanted(found) and context.allows(
            Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, found.id
        ):
            response.transaction_states.append(
                TransactionState(
                    transactional_id=found.id,
                    producer_id=found.producer_id,
                    transaction_state=found.status.title,
                )
            )
        if number % _STEP_TRANSACTIONS == 0:
            yield
    return response


def _filter(
    request: ListTransactionsRequest, known: list[Transaction], context: Context
) -> Callable[[Transaction], bool]:
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    pattern = None
    if request.transactional_id_pattern:
        characters = frozenset(char for found in known for char in found.id)
        pattern = Pattern(request.transactional_id_pattern, characters)
    now_ms, longer_ms = context.clock.monotonic_ms(), request.duration_filter

    def is_wanted(found: Transaction) -> bool:
        return (
            (not states or found.status.title in states)
            and (not producers or found.producer_id in producers)
            and (longer_ms < 0 or _lasts(found, now_ms) > longer_ms)
            and (pattern is None or pattern.matches(found.id))
        )

    return is_wanted


def _lasts(found: Transaction, now_ms: int) -> int:
    """-1 for one that is over, or was never begun."""
    return -1 if found.status in AT_REST else now_ms - found.started.ms
