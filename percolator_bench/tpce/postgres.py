"""The brokerage on PostgreSQL: tables with keys and indexes, and one prepared statement a transaction.

A transaction that only reads is one SELECT with joins. An order and a result are one statement each, too
(data-modifying WITH), which saves the round trips of BEGIN and COMMIT. Only a customer position with trades
needs two statements, sent together in psycopg's pipeline mode. All are REPEATABLE READ, and run again on a
serialization failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, LiteralString

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

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_TABLES: Final = """
CREATE TABLE customer (customer bigint NOT NULL, charge bigint NOT NULL, rate bigint NOT NULL);
CREATE TABLE account (account bigint NOT NULL, customer bigint NOT NULL, cash bigint NOT NULL);
CREATE TABLE watch_item (customer bigint NOT NULL, security bigint NOT NULL);
CREATE TABLE holding (account bigint NOT NULL, security bigint NOT NULL, quantity bigint NOT NULL);
CREATE TABLE security (security bigint NOT NULL, close bigint NOT NULL, outstanding bigint NOT NULL);
CREATE TABLE last_trade (security bigint NOT NULL, price bigint NOT NULL, volume bigint NOT NULL);
CREATE TABLE trade (
  trade bigint NOT NULL, account bigint NOT NULL, security bigint NOT NULL, quantity bigint NOT NULL,
  bid bigint NOT NULL, charge bigint NOT NULL, price bigint NOT NULL, executed boolean NOT NULL
);
CREATE TABLE payment (trade bigint NOT NULL, account bigint NOT NULL, amount bigint NOT NULL);
"""

# Keys are added after the data, as pg_restore does.
_KEYS: Final = """
ALTER TABLE customer ADD PRIMARY KEY (customer);
ALTER TABLE account ADD PRIMARY KEY (account);
CREATE INDEX ON account (customer);
ALTER TABLE watch_item ADD PRIMARY KEY (customer, security);
ALTER TABLE holding ADD PRIMARY KEY (account, security);
ALTER TABLE security ADD PRIMARY KEY (security);
ALTER TABLE last_trade ADD PRIMARY KEY (security);
ALTER TABLE trade ADD PRIMARY KEY (trade);
CREATE INDEX ON trade (account, trade);
ALTER TABLE payment ADD PRIMARY KEY (trade);
"""

_TRADE_ORDER: Final = """
WITH terms AS (
  SELECT c.charge + c.rate * abs(%(quantity)s) * %(bid)s / 10000 AS charge, a.cash, l.price,
    coalesce(h.quantity, 0) AS held
  FROM account a JOIN customer c USING (customer) CROSS JOIN last_trade l
    LEFT JOIN holding h ON h.account = a.account AND h.security = l.security
  WHERE a.account = %(account)s AND l.security = %(security)s
), ordered AS (
  INSERT INTO trade (trade, account, security, quantity, bid, charge, price, executed)
  SELECT %(trade)s, %(account)s, %(security)s, %(quantity)s, %(bid)s, charge, 0, false FROM terms
)
SELECT charge, cash, price, held FROM terms
"""

_TRADE_RESULT: Final = """
WITH done AS (
  UPDATE trade SET executed = true, price = %(price)s WHERE trade = %(trade)s AND NOT executed
  RETURNING account, security, quantity, -quantity * %(price)s - charge AS amount
), paid AS (
  UPDATE account SET cash = cash + done.amount FROM done WHERE account.account = done.account
  RETURNING account.cash
), held AS (
  INSERT INTO holding (account, security, quantity) SELECT account, security, quantity FROM done
  ON CONFLICT (account, security) DO UPDATE SET quantity = holding.quantity + excluded.quantity
), booked AS (
  INSERT INTO payment (trade, account, amount) SELECT %(trade)s, account, amount FROM done
)
SELECT cash FROM paid
"""

_MARKET_WATCH: Final = """
SELECT sum(l.price * s.outstanding), sum(s.close * s.outstanding)
FROM watch_item w JOIN security s USING (security) JOIN last_trade l USING (security)
WHERE w.customer = %(customer)s
"""

_CUSTOMER_POSITION: Final = """
SELECT a.account, a.cash, coalesce(sum(h.quantity * l.price), 0)::bigint, c.charge, c.rate
FROM customer c JOIN account a USING (customer)
  LEFT JOIN (holding h JOIN last_trade l USING (security)) USING (account)
WHERE c.customer = %(customer)s
GROUP BY a.account, c.customer
"""

_NEWEST_TRADES: Final = """
SELECT trade, security, quantity, bid, charge, price, executed FROM trade
WHERE account = %(account)s ORDER BY trade DESC LIMIT %(count)s
"""

_MARKET_FEED: Final = """
UPDATE last_trade l SET price = f.price, volume = l.volume + f.quantity
FROM unnest(%(securities)s::bigint[], %(prices)s::bigint[], %(quantities)s::bigint[])
  AS f (security, price, quantity)
WHERE l.security = f.security
"""


def load(connection: Connection, brokerage: Brokerage) -> None:
    """Create the tables and the initial data."""
    customers, accounts = range(brokerage.customers), brokerage.accounts()
    rows: dict[LiteralString, Iterable[tuple[object, ...]]] = {
        "customer": ((one, *brokerage.terms(one)) for one in customers),
        "account": ((one, one // ACCOUNTS, CASH) for one in accounts),
        "watch_item": ((one, security) for one in customers for security in brokerage.watched(one)),
        "holding": ((one, *held) for one in accounts for held in brokerage.holdings(one)),
        "security": ((one, *brokerage.quote(one)[1:]) for one in range(brokerage.securities)),
        "last_trade": ((one, brokerage.quote(one)[0], 0) for one in range(brokerage.securities)),
        "trade": (_executed(brokerage, trade) for one in accounts for trade in brokerage.history(one)),
    }
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        for table, lines in rows.items():
            with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for line in lines:
                    copy.write_row(line)
        cursor.execute(_KEYS)
    connection.commit()
    connection.autocommit = True
    connection.execute("VACUUM ANALYZE")


def _executed(brokerage: Brokerage, trade: Trade) -> tuple[object, ...]:
    charge = charge_of(brokerage.terms(trade.account // ACCOUNTS), trade.quantity, trade.bid)
    number, account, security = trade.trade, trade.account, trade.security
    return number, account, security, trade.quantity, trade.bid, charge, trade.price, True


class PostgresClient:
    """Does items on one connection, one at a time.

    ``attempts`` counts all begun transactions, also repeated ones.
    """

    def __init__(self, connection: Connection) -> None:
        from psycopg.errors import DeadlockDetected, SerializationFailure
        from psycopg.types.numeric import Int8BinaryDumper

        # One type for all numbers: else a statement would be prepared separately for small and large numbers.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.prepare_threshold = 0
        self._again = (SerializationFailure, DeadlockDetected)
        self._connection = connection
        self._cursor = connection.cursor(binary=True)
        self._second = connection.cursor(binary=True)
        self.attempts = 0

    def do(self, item: Item) -> object:
        """Do an item; return the result of its last transaction."""
        if isinstance(item, MarketWatch):
            [(now, then)] = self._run(_MARKET_WATCH, {"customer": item.customer})
            return 100 * (float(now) / float(then) - 1)
        if isinstance(item, TradeStatus):
            return len(self._run(_NEWEST_TRADES, {"account": item.account, "count": STATUS_TRADES}))
        if isinstance(item, CustomerPosition):
            return self._customer_position(item)
        if isinstance(item, MarketFeed):
            securities, prices, quantities = map(list, zip(*item.tickers, strict=True))
            self._run(_MARKET_FEED, {"securities": securities, "prices": prices, "quantities": quantities})
            return None
        order = {
            "trade": item.trade,
            "account": item.account,
            "security": item.security,
            "quantity": item.quantity,
            "bid": item.bid,
        }
        self._run(_TRADE_ORDER, order)
        [(balance,)] = self._run(_TRADE_RESULT, {"trade": item.trade, "price": item.price})
        return balance

    def _run(self, statement: LiteralString, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        while True:
            self.attempts += 1
            try:
                cursor = self._cursor.execute(statement, values)
                return cursor.fetchall() if cursor.description else []
            except self._again:
                continue

    def _customer_position(self, item: CustomerPosition) -> tuple[dict[int, tuple[int, int]], int]:
        asked = {"customer": item.customer}
        if item.account is None:
            rows, recent = self._run(_CUSTOMER_POSITION, asked), 0
        else:
            self.attempts += 1
            with self._connection.pipeline(), self._connection.transaction():
                self._cursor.execute(_CUSTOMER_POSITION, asked)
                self._second.execute(_NEWEST_TRADES, {"account": item.account, "count": POSITION_TRADES})
                rows, recent = self._cursor.fetchall(), len(self._second.fetchall())
        return {account: (cash, worth) for account, cash, worth, _, _ in rows}, recent


def read_state(connection: Connection, brokerage: Brokerage) -> State:
    """Read the contents of the server, without the initial trades."""
    state = State()
    state.cash = dict(connection.execute("SELECT account, cash FROM account"))
    for account, security, quantity in connection.execute("SELECT account, security, quantity FROM holding"):
        state.holdings[account, security] = quantity
    trades = "SELECT trade, executed FROM trade WHERE trade >= %s OR NOT executed"
    for trade, executed in connection.execute(trades, [brokerage.first_trade]):
        if executed:
            state.executed[trade] = None
        else:
            state.pending.add(trade)
    state.executed |= dict(connection.execute("SELECT trade, amount FROM payment"))
    state.volumes = dict(connection.execute("SELECT security, volume FROM last_trade"))
    connection.rollback()
    return state
