"""A brokerage's mix of transactions like TPC-E (paper, section 3.3).

TPC-E is a brokerage firm: customers place orders and read accounts and market data, and a market executes the
orders and publishes prices. This benchmark has, per 71 transactions:

====================  ==  ===================================================================================
trade order           10  reads the customer's terms, the account's cash, the price and the holding; adds a
                          pending trade
trade result          10  executes it: the trade, the account's cash, the holding, a new cash transaction
market watch          18  the change in the worth of the 100 securities of a watch list since the last close
customer position     13  cash and worth of five accounts with ten holdings each; every second customer
                          position also has the newest ten trades of an account
trade status          19  the newest 50 trades of an account
market feed            1  new price and volume of 20 securities
====================  ==  ===================================================================================

The shares of these kinds are those of TPC-E. So are the number of accounts of a customer, the length of a
watch list, the tickers of a feed, and 685 securities for 1000 customers. The number of customers is the
scale. Simplifications:

- As in the paper, a trade result does not add to its broker's commission, which is in a row that a hundred
  customers share. There are no brokers, and so no broker volume.
- Security detail, trade lookup and trade update are left out.
- Orders are market orders; the same client executes each right after it was placed. Customers are drawn
  evenly, and a market watch always reads the watch list. There are no taxes. A holding is one number, not a
  list of lots. A holding of zero is kept, and may become negative.
- An account begins with 20 trades, not with thousands. Names and descriptions are left out.
- As in the paper, there are neither latency limits nor pauses: each worker does the next item at once.

The two stores have the same data and do the same items, drawn from a seed. At the end the contents of each
store are compared with the expected contents, to the cent (`state.check`). PostgreSQL is measured twice: with
commits that wait for the disk, the default, and with commits that do not (``synchronous_commit`` off). Redis
syncs its file once a second, which is close to ``synchronous_commit`` off. CPU time is that of all processes:
the workers, and the server with its background work. It includes one removal of old versions
(`collect_garbage`, VACUUM) after all runs.
"""

from percolator_bench.tpce.suite import measure

__all__ = ["measure"]
