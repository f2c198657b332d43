"""The initial data of the brokerage, and the actions of its customers: the same for every store.

Seeds determine all of it, so each store gets the same data and the same transactions. Prices come from the
market, that is, from the stream of items. So cash and holdings at the end do not depend on the order of the
items, and must be the same in every store. Money is whole cents.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

ACCOUNTS: Final = 5
"""Accounts of a customer."""
HOLDINGS: Final = 10
"""Securities that an account has at the start."""
WATCHED: Final = 100
"""Securities on a customer's watch list; all of them if there are fewer."""
HISTORY: Final = 20
"""Executed trades of an account at the start."""
STATUS_TRADES: Final = 50
"""A trade status reads this many of an account's newest trades."""
POSITION_TRADES: Final = 10
"""A customer position reads this many of an account's newest trades."""
TICKERS: Final = 20
"""Securities in a message of the market feed."""
CASH: Final = 10_000_000
"""Cash of an account at the start."""
RATE_UNIT: Final = 10_000
"""A customer's commission rate is divided by this number."""

SECURITIES_PER_THOUSAND: Final = 685
_FEWEST_SECURITIES: Final = 2 * TICKERS

# Items of each kind per 71 transactions; each trade is two transactions, an order and a result.
_TRADES: Final = 10
_WATCHES: Final = 18
_POSITIONS: Final = 13
_STATUSES: Final = 19
_FEEDS: Final = 1


@dataclass(frozen=True, slots=True)
class Trade:
    """A trade order, and the trade result when the market executes it: two transactions.

    ``quantity`` is negative in a sale. ``bid`` is the price at the order, ``price`` that of the execution.
    """

    trade: int
    account: int
    security: int
    quantity: int
    bid: int
    price: int


@dataclass(frozen=True, slots=True)
class MarketWatch:
    """Read how much the worth of a customer's watch list has changed since the last close, in percent."""

    customer: int


@dataclass(frozen=True, slots=True)
class CustomerPosition:
    """Read cash and worth of all accounts of a customer, and the newest trades of ``account``, if given."""

    customer: int
    account: int | None


@dataclass(frozen=True, slots=True)
class TradeStatus:
    """Read the newest trades of an account."""

    account: int


@dataclass(frozen=True, slots=True)
class MarketFeed:
    """Write new prices and volumes, ``(security, price, quantity)`` in the order of the securities."""

    tickers: tuple[tuple[int, int, int], ...]


Item: TypeAlias = Trade | MarketWatch | CustomerPosition | TradeStatus | MarketFeed


@dataclass(frozen=True, slots=True)
class Brokerage:
    """The initial data, for a number of customers."""

    customers: int

    @property
    def securities(self) -> int:
        """The number of traded securities."""
        return max(_FEWEST_SECURITIES, self.customers * SECURITIES_PER_THOUSAND // 1000)

    @property
    def first_trade(self) -> int:
        """The number of the first trade after the initial data."""
        return self.customers * ACCOUNTS * HISTORY

    def accounts(self) -> range:
        """All accounts; `accounts_of` returns a customer's."""
        return range(self.customers * ACCOUNTS)

    def terms(self, customer: int) -> tuple[int, int]:
        """The charge for each trade, and the commission rate."""
        return 100 * (1 + customer % 3), 10 + 5 * (customer % 3)

    def quote(self, security: int) -> tuple[int, int, int]:
        """Price, closing price and number of shares outstanding."""
        return 2000 + security % 1000, 2000 + security * 7 % 1000, 1_000_000 + security

    def watched(self, customer: int) -> list[int]:
        """The customer's watch list."""
        chosen = random.Random(f"watch {customer}")
        return sorted(chosen.sample(range(self.securities), min(WATCHED, self.securities)))

    def holdings(self, account: int) -> list[tuple[int, int]]:
        """The holdings at the start, as ``(security, quantity)``."""
        chosen = random.Random(f"holdings {account}")
        return [(one, chosen.randint(1, 8) * 100) for one in chosen.sample(range(self.securities), HOLDINGS)]

    def history(self, account: int) -> Iterator[Trade]:
        """The executed trades of an account at the start; cash and holdings do not include them."""
        chosen = random.Random(f"history {account}")
        for number in range(account * HISTORY, (account + 1) * HISTORY):
            yield self._trade(chosen, number, account)

    def items(self, seed: str, first_trade: int) -> Iterator[Item]:
        """Yield the actions of customers and market, without end, with trades from ``first_trade`` on."""
        chosen = random.Random(seed)
        numbers = itertools.count(first_trade)
        kinds = (Trade, MarketWatch, CustomerPosition, TradeStatus, MarketFeed)
        weights = (_TRADES, _WATCHES, _POSITIONS, _STATUSES, _FEEDS)
        while True:
            kind = chosen.choices(kinds, weights)[0]
            customer = chosen.randrange(self.customers)
            account = customer * ACCOUNTS + chosen.randrange(ACCOUNTS)
            if kind is Trade:
                yield self._trade(chosen, next(numbers), account)
            elif kind is MarketWatch:
                yield MarketWatch(customer)
            elif kind is CustomerPosition:
                yield CustomerPosition(customer, chosen.choice((account, None)))
            elif kind is TradeStatus:
                yield TradeStatus(account)
            else:
                securities = sorted(chosen.sample(range(self.securities), TICKERS))
                yield MarketFeed(tuple((one, _price(chosen), _quantity(chosen)) for one in securities))

    def _trade(self, chosen: random.Random, number: int, account: int) -> Trade:
        security = chosen.randrange(self.securities)
        quantity = _quantity(chosen) * chosen.choice((1, -1))
        return Trade(number, account, security, quantity, _price(chosen), _price(chosen))


def charge_of(terms: tuple[int, int], quantity: int, bid: int) -> int:
    """The fee of a trade, which the customer pays in addition to the price."""
    charge, rate = terms
    return charge + rate * abs(quantity) * bid // RATE_UNIT


def transactions_of(item: Item) -> int:
    """The number of transactions of an item."""
    return 2 if isinstance(item, Trade) else 1


def _price(chosen: random.Random) -> int:
    return chosen.randint(2000, 3000)


def _quantity(chosen: random.Random) -> int:
    return chosen.randint(1, 8) * 100
