"""The brokerage on this library: raw tables. A row has the data that one transaction reads together.

::

    customers   customer   terms; <n> of each account -> cash, and quantity of each security held
    watches     customer   list: the securities on the watch list
    quotes      page       <security>: price, closing price, shares outstanding, volume
    trades      account    <trade> -> order and execution
    payments    account    <trade> -> amount

Numbers that are written together are in one cell, packed: an account's cash and holdings, since each trade
result writes both. A row of trades or payments has the entries of one day, because it would otherwise grow
without end; a run of the benchmark counts as one day.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from percolator_bench.servers import for_each
from percolator_bench.tpce.state import State
from percolator_bench.tpce.workload import (
    ACCOUNTS,
    CASH,
    POSITION_TRADES,
    STATUS_TRADES,
    Brokerage,
    CustomerPosition,
    Item,
    MarketFeed,
    MarketWatch,
    Trade,
    TradeStatus,
    charge_of,
)
from percolator_core.database import Database
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

ATTEMPTS: Final = 100
"""A transaction is attempted at most this many times."""

_PENDING, _EXECUTED = 0, 1
_LOAD_WIDTH: Final = 16
_LOAD_BUNCH: Final = 5
"""Customers in one transaction of the load."""

_PAGE: Final = 32
"""A row has the quotes of this many securities, so that reading many quotes needs few commands."""

_TERMS: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">q")
_QUOTE: Final = struct.Struct(">qqqq")
_TRADE: Final = struct.Struct(">qqqqqB")
"""Security, quantity, bid, charge, price, status."""
_PRICE: Final = struct.Struct(">q")

_NUMBERS: Final = [str(number) for number in range(ACCOUNTS)]
"""The accounts of a customer, as columns."""


def _key(number: int) -> bytes:
    return b"%09d" % number


@cache
def _quote(security: int) -> tuple[str, bytes, str]:
    return "quotes", _key(security // _PAGE), str(security)


def _pack_account(cash: int, held: Mapping[int, int]) -> bytes:
    numbers = [part for holding in held.items() for part in holding]
    return struct.pack(f">q{len(numbers)}i", cash, *numbers)


def _unpack_account(packed: bytes) -> tuple[int, dict[int, int]]:
    cash: int = _NUMBER.unpack_from(packed)[0]
    held = struct.unpack_from(f">{(len(packed) - _NUMBER.size) // 4}i", packed, _NUMBER.size)
    return cash, dict(zip(held[::2], held[1::2], strict=True))


def create_tables(db: Database) -> None:
    """Create the tables."""
    for table in ("customers", "watches", "quotes", "trades", "payments"):
        db.create_table(table)


def load(db: Database, brokerage: Brokerage) -> None:
    """Create the tables and the initial data."""
    create_tables(db)

    def write_quotes(securities: Iterable[int]) -> None:
        with db.transaction() as t:
            for security in securities:
                t.set(*_quote(security), _QUOTE.pack(*brokerage.quote(security), 0))

    def write_customers(customers: Iterable[int]) -> None:
        with db.transaction() as t:
            for customer in customers:
                _write_customer(t, brokerage, customer)

    for_each(db, _LOAD_WIDTH, write_quotes, _bunches(brokerage.securities, 100))
    for_each(db, _LOAD_WIDTH, write_customers, _bunches(brokerage.customers, _LOAD_BUNCH))


def _write_customer(t: Transaction, brokerage: Brokerage, customer: int) -> None:
    row, terms = _key(customer), brokerage.terms(customer)
    t.set("customers", row, "terms", _TERMS.pack(*terms))
    watched = brokerage.watched(customer)
    t.set("watches", row, "list", struct.pack(f">{len(watched)}i", *watched))
    for number in range(ACCOUNTS):
        account = customer * ACCOUNTS + number
        t.set("customers", row, _NUMBERS[number], _pack_account(CASH, dict(brokerage.holdings(account))))
        for trade in brokerage.history(account):
            charge = charge_of(terms, trade.quantity, trade.bid)
            record = (trade.security, trade.quantity, trade.bid, charge, trade.price, _EXECUTED)
            t.set("trades", _key(account), str(trade.trade), _TRADE.pack(*record))


def _bunches(total: int, length: int) -> Iterator[range]:
    for start in range(0, total, length):
        yield range(start, min(start + length, total))


class PercolatorClient:
    """Does items on a database, from any number of tasks at a time.

    ``attempts`` counts all begun transactions, also repeated ones.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.attempts = 0

    def do(self, item: Item) -> object:
        """Do an item; return the result of its last transaction."""
        if isinstance(item, MarketWatch):
            return self._market_watch(item)
        if isinstance(item, TradeStatus):
            return self._trade_status(item)
        if isinstance(item, CustomerPosition):
            return self._customer_position(item)
        if isinstance(item, Trade):
            self._trade_order(item)
            return self._trade_result(item)
        self._market_feed(item)
        return None

    def _trade_order(self, item: Trade) -> tuple[int, int, int, int]:
        customer, number = divmod(item.account, ACCOUNTS)
        row = _key(customer)

        def order(t: Transaction) -> tuple[int, int, int, int]:
            self.attempts += 1
            terms, account, quote = t.get_many(
                [
                    ("customers", row, "terms"),
                    ("customers", row, _NUMBERS[number]),
                    _quote(item.security),
                ]
            )
            assert terms is not None
            assert account is not None
            assert quote is not None
            cash, held = _unpack_account(account)
            charge = charge_of(_TERMS.unpack(terms), item.quantity, item.bid)
            record = (item.security, item.quantity, item.bid, charge, 0, _PENDING)
            t.set("trades", _key(item.account), str(item.trade), _TRADE.pack(*record))
            return charge, cash, _PRICE.unpack_from(quote)[0], held.get(item.security, 0)

        return self._db.run(order, ATTEMPTS)

    def _trade_result(self, item: Trade) -> int:
        customer, number = divmod(item.account, ACCOUNTS)
        row, account, trade = _key(customer), _key(item.account), str(item.trade)

        def result(t: Transaction) -> int:
            self.attempts += 1
            ordered, packed = t.get_many([("trades", account, trade), ("customers", row, _NUMBERS[number])])
            assert ordered is not None
            assert packed is not None
            security, quantity, bid, charge, _, status = _TRADE.unpack(ordered)
            assert status == _PENDING
            cash, held = _unpack_account(packed)
            amount = -quantity * item.price - charge
            held[security] = held.get(security, 0) + quantity
            record = (security, quantity, bid, charge, item.price, _EXECUTED)
            t.set("trades", account, trade, _TRADE.pack(*record))
            balance: int = cash + amount
            t.set("customers", row, _NUMBERS[number], _pack_account(balance, held))
            t.set("payments", account, trade, _NUMBER.pack(amount))
            return balance

        return self._db.run(result, ATTEMPTS)

    def _market_watch(self, item: MarketWatch) -> float:
        self.attempts += 1
        with self._db.transaction() as t:
            watched = t.get("watches", _key(item.customer), "list")
            assert watched is not None
            securities = struct.unpack(f">{len(watched) // 4}i", watched)
            now = then = 0
            for quote in t.get_many([_quote(security) for security in securities]):
                assert quote is not None
                price, close, outstanding, _ = _QUOTE.unpack(quote)
                now += price * outstanding
                then += close * outstanding
        return 100 * (now / then - 1)

    def _customer_position(self, item: CustomerPosition) -> tuple[dict[int, tuple[int, int]], int]:
        self.attempts += 1
        row = _key(item.customer)
        with self._db.transaction() as t:
            _, *packed = t.get_many([("customers", row, column) for column in ("terms", *_NUMBERS)])
            accounts = [_unpack_account(account or b"") for account in packed]
            prices = _prices(t, {security for _, held in accounts for security in held})
            recent = 0
            if item.account is not None:
                recent = len(_newest(t, item.account, POSITION_TRADES))
        return {
            item.customer * ACCOUNTS + number: (
                cash,
                sum(quantity * prices[security] for security, quantity in held.items()),
            )
            for number, (cash, held) in enumerate(accounts)
        }, recent

    def _trade_status(self, item: TradeStatus) -> int:
        self.attempts += 1
        with self._db.transaction() as t:
            return len(_newest(t, item.account, STATUS_TRADES))

    def _market_feed(self, item: MarketFeed) -> None:
        cells = [_quote(security) for security, _, _ in item.tickers]

        def feed(t: Transaction) -> None:
            self.attempts += 1
            for (_, price, quantity), cell, quote in zip(item.tickers, cells, t.get_many(cells), strict=True):
                assert quote is not None
                _, close, outstanding, volume = _QUOTE.unpack(quote)
                t.set(*cell, _QUOTE.pack(price, close, outstanding, volume + quantity))

        self._db.run(feed, ATTEMPTS)


def _prices(t: Transaction, securities: Iterable[int]) -> dict[int, int]:
    wanted = list(securities)
    quotes = t.get_many([_quote(security) for security in wanted])
    return {
        security: _PRICE.unpack_from(quote or b"")[0] for security, quote in zip(wanted, quotes, strict=True)
    }


def _newest(t: Transaction, account: int, count: int) -> list[tuple[int, ...]]:
    found = t.get_row("trades", _key(account))
    newest = sorted(map(int, found), reverse=True)[:count]
    return [(trade, *_TRADE.unpack(found[str(trade)])) for trade in newest]


def read_state(db: Database, brokerage: Brokerage) -> State:
    """Read the contents of the store, without the initial trades."""
    state = State()
    with db.snapshot() as now:
        for row, cells in now.scan("customers", columns=_NUMBERS):
            for number, packed in cells.items():
                account = int(row) * ACCOUNTS + int(number)
                state.cash[account], held = _unpack_account(packed)
                state.holdings |= {(account, security): quantity for security, quantity in held.items()}
        for _, security, quote in _cells(now, "quotes"):
            state.volumes[int(security)] = _QUOTE.unpack(quote)[3]
        for _, trade, record in _cells(now, "trades"):
            if _TRADE.unpack(record)[5] == _PENDING:
                state.pending.add(int(trade))
            elif int(trade) >= brokerage.first_trade:
                state.executed[int(trade)] = None
        for _, trade, amount in _cells(now, "payments"):
            state.executed[int(trade)] = _NUMBER.unpack(amount)[0]
    return state


def _cells(now: Snapshot, table: str) -> Iterator[tuple[bytes, str, bytes]]:
    for row, cells in now.scan(table):
        for column, value in cells.items():
            yield row, column, value
