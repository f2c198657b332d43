"""The contents of a store at the end, and a check of them: wrong contents mean wrong figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from percolator_bench.tpce.workload import ACCOUNTS, CASH, Brokerage, Item, MarketFeed, Trade, charge_of
from percolator_core.errors import PercolatorError


class WrongResult(PercolatorError):
    """The contents of a store do not match its committed transactions; its figures do not count."""


@dataclass(slots=True)
class State:
    """Contents that do not depend on the order of the items.

    ``cash`` by account, ``holdings`` by account and security, ``executed`` trades with their cash
    transactions (None if there is none), ``pending`` trades, and ``volumes`` by security.
    """

    cash: dict[int, int] = field(default_factory=dict)
    holdings: dict[tuple[int, int], int] = field(default_factory=dict)
    executed: dict[int, int | None] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    volumes: dict[int, int] = field(default_factory=dict)


def expected(brokerage: Brokerage, items: Iterable[Item]) -> State:
    """Compute the contents from the initial data and the items."""
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
    """The cash that the execution of a trade adds to the account."""
    terms = brokerage.terms(item.account // ACCOUNTS)
    return -item.quantity * item.price - charge_of(terms, item.quantity, item.bid)


def check(where: str, found: State, wanted: State) -> None:
    """Compare the contents of a store with the expected ones.

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
