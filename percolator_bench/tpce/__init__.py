"""A brokerage's mix of transactions like TPC-E (paper, section 3.3).

TPC-E is a brokerage firm: customers place orders and look at accounts and market, and a market executes the
orders and tells prices. What is kept of it, per 71 transactions:

====================  ==  ===================================================================================
trade order           10  reads the customer's terms, the account's cash, the price and the holding; adds a
                          pending trade
trade result          10  executes it: the trade, the account's cash, the holding, a new cash transaction
market watch          18  the change of a watch list of 100 securities since the last close
customer position     13  cash and worth of five accounts with ten holdings each; every other one shows the
                          newest ten trades of an account, too
trade status          19  the newest 50 trades of an account
market feed            1  new price and volume of 20 securities
====================  ==  ===================================================================================

The shares are TPC-E's, among these kinds; so are accounts of a customer, length of a watch list, tickers of a
feed, and 685 securities for 1000 customers. The number of customers is the scale. Simplified is:

- As in the paper, a trade result does not add to its broker's commission, in a row that a hundred customers
  share. There are no brokers at all, and so no broker volume.
- Security detail, trade lookup and trade update are left out.
- Orders are market orders; the same client executes each right after it has been placed. Customers are drawn
  evenly, and a market watch is always of the watch list. There are no taxes, and a holding is one number and
  no list of lots; one that is sold out stays, with the number zero, and may fall below.
- An account begins with 20 trades, not with thousands. Names and descriptions are left out.
- Latency limits and pacing are left out, as in the paper: each worker does the next item at once.

Both stores hold the same data and do the same items, drawn from a seed; at the end each is compared with what
the items come to, to the cent (`state.check`). PostgreSQL is measured twice: its commits wait for the disk,
as by default, or do not (``synchronous_commit`` off). Redis writes its file once a second: nearest to the
latter. CPU time is that of everything: the worker processes, all processes of the server with what they do in
the background, and a clean-up of old versions (`collect_garbage`, VACUUM) when all runs are over.
"""

from percolator_bench.tpce.suite import measure

__all__ = ["measure"]
