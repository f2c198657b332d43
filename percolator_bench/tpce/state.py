"""What a store holds at the end, and what must be true of it: else it was not the work that was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from percolator_bench.tpce.workload import ACCOUNTS, CASH, Brokerage, Item, MarketFeed, Trade, charge_of
from percolator_core.errors import PercolatorError


class WrongResult(PercolatorError):
    """A store does not hold what the transactions that it committed amount to; no figure counts."""


@dataclass(slots=True)
class State:
    """Contents that do not depend on the order in which items were done.

    ``cash`` by account, ``holdings`` by account and security, ``executed`` trades with their cash
    transactions (None where there is none), ``pending`` trades, and ``volumes`` by security.
    """

    cash: dict[int, int] = field(default_factory=dict)
    holdings: dict[tuple[int, int], int] = field(default_factory=dict)
    executed: dict[int, int | None] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    volumes: dict[int, int] = field(default_factory=dict)


def expected(brokerage: Brokerage, items: Iterable[Item]) -> State:
    """What the data at the start and the items come to."""
    state = State()
    holdings: defaultdict[tuple[int, int], int] = defaultdict(int)
    state.volumes = dict.fromkeys(range(brokerage.securities), 0)
    for account in brokerage.accounts():
        state.cash[account] = CASH
        for security, quantity in brokerage.holdings(account):
            holdings[account, security] = quantity
    for item in items:
        if isinstance(item, Trade):
            amount = amount_of(brokerage, item)
            state.cash[item.account] += amount
            holdings[item.account, item.security] += item.quantity
            state.executed[item.trade] = amount
        elif isinstance(item, MarketFeed):
            for security, _, quantity in item.tickers:
                state.volumes[security] += quantity
    state.holdings = dict(holdings)
    return state


def amount_of(brokerage: Brokerage, item: Trade) -> int:
    """What the execution of a trade adds to the account's cash."""
    terms = brokerage.terms(item.account // ACCOUNTS)
    return -item.quantity * item.price - charge_of(terms, item.quantity, item.bid)


def check(where: str, found: State, wanted: State) -> None:
    """Hold what a store has against what the items come to.

    Raises:
        WrongResult: an execution, a share or a cent was lost, doubled or invented.
    """
    for problem in _problems(found, wanted):
        raise WrongResult(f"{where}: {problem}; its figures do not count, and this is a bug to report")


def _problems(found: State, wanted: State) -> Iterator[str]:
    if found.pending:
        yield f"{len(found.pending)} trades were ordered and not executed"
    if found.executed.keys() != wanted.executed.keys():
        lost, invented = wanted.executed.keys() - found.executed, found.executed.keys() - wanted.executed
        yield f"{len(lost)} executed trades are missing and {len(invented)} were never ordered"
    for name in ("executed", "cash", "holdings", "volumes"):
        mine, right = getattr(found, name), getattr(wanted, name)
        if mine != right:
            keys = [key for key in mine.keys() | right if mine.get(key) != right.get(key)]
            key = min(keys)
            yield f"{len(keys)} {name} are wrong, {key}: {mine.get(key)} instead of {right.get(key)}"
