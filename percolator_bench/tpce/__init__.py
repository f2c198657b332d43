"""A brokerage's mix of transactions like TPC-E (paper, section 3.3).

TPC-E is a brokerage firm: customers place orders and read accounts and market data, and a market executes the
orders and publishes prices. This benchmark has, per 71 transactions:

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

Among these kinds, the shares are TPC-E's. So are the accounts of a customer, the length of a watch list, the
tickers of a feed, and 685 securities for 1000 customers. The number of customers is the scale.
Simplifications:

- As in the paper, a trade result does not add to its broker's commission, in a row that a hundred customers
  share. There are no brokers at all, and so no broker volume.
- There is no security detail, trade lookup or trade update.
- Orders are market orders; the same client executes each right after it was placed. Customers are drawn
  evenly, and a market watch always reads the watch list. There are no taxes. A holding is one number and no
  list of lots; a holding of zero stays, and may become negative.
- An account begins with 20 trades, not with thousands. There are no names and descriptions.
- As in the paper, there are no latency limits and no pacing: each worker does the next item at once.

Both stores have the same data and do the same items, drawn from a seed; at the end each is compared with the
expected contents, to the cent (`state.check`). PostgreSQL is measured twice: with commits that wait for the
disk, the default, and with commits that do not (``synchronous_commit`` off). Redis syncs its file once a
second, which is nearest to the latter. CPU time is that of all processes: the workers, the server with its
background work, and a removal of old versions (`collect_garbage`, VACUUM) after all runs.
"""

from percolator_bench.tpce.suite import measure

__all__ = ["measure"]
