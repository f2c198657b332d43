"""Row observers: added column swallowed; retyped column; new observer over a base; discard + flush."""
import sys, tempfile, uuid
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, "/tmp/h/views")
import percolator_core
from percolator_core import PrimaryKey, Table, Worker, RowChange
from percolator_core.tables.model import definition_of
from percolator_core.admin.rerun import rerun
from percolator_core.admin.quarantine import Quarantine
from percolator_core.observers import Retry
from tests.chains import chain_of, watch, TABLES

tmp = Path(tempfile.mkdtemp())
seen = []
broken = False
def see(t, c):
    if broken: raise ValueError("broken")
    seen.append((c.before, c.after, set(c.columns)))
def chain_for(model, *obs):
    made = chain_of(*obs, tables=(*TABLES, definition_of(model)))
    return replace(made, models={definition_of(model).name: model})
def work(db, chain):
    seen.clear(); Worker(db, chain).run_until_idle(timeout=20); return list(seen)

class Offer(Table, name="offers"):
    id: PrimaryKey[int]
    price: int = 0
class Offer2(Table, name="offers"):
    id: PrimaryKey[int]
    price: int = 0
    note: str | None = None
class Offer3(Table, name="offers"):
    id: PrimaryKey[int]
    price: float = 0.0
    note: str | None = None
R = Retry(1, 0.001, 0.001)
with percolator_core.connect(f"embedded:{tmp}/s", namespace="a") as db:
    c = chain_for(Offer, watch("o", see, "offers.*", retry=R)); c.create_tables(db)
    with db.transaction() as t: t.insert(Offer(id=1, price=3))
    print("first", work(db, c))
    db.migrate([Offer2]) if True else None
    c = chain_for(Offer2, watch("o", see, "offers.*", retry=R)); c.create_tables(db)
    for note in ("x", "y"):
        with db.transaction() as t: t.update(Offer2, id=1, note=note)
        print("ADDED COLUMN: note :=", note, "-> runs:", work(db, c))
    db.migrate([Offer3], allow_narrowing=["offers.price"])
    c = chain_for(Offer3, watch("o", see, "offers.*", retry=R)); c.create_tables(db)
    work(db, c)
    for p in (4.0, 5.0):
        with db.transaction() as t: t.update(Offer3, id=1, price=p)
        print("RETYPED COLUMN: price :=", p, "-> runs:", work(db, c))

with percolator_core.connect(f"embedded:{tmp}/t", namespace="b") as db:
    none = chain_for(Offer); none.create_tables(db)
    db.set_base("offers", str(tmp / "base"))
    with db.transaction() as t:
        t.insert(Offer(id=1, price=3)); t.insert(Offer(id=2, price=7))
    db.flush("offers", everything=True)
    c = chain_for(Offer, watch("o", see, "offers.*", retry=R)); c.create_tables(db)
    with db.transaction() as t: t.update(Offer, id=2, price=8)
    print("NEW OBSERVER over a base, next change:", work(db, c))
    print("rerun", rerun(db, c, "o").marked, "->", work(db, c))

with percolator_core.connect(f"embedded:{tmp}/u", namespace="c") as db:
    c = chain_for(Offer, watch("o", see, "offers.*", retry=R)); c.create_tables(db)
    db.set_base("offers", str(tmp / "base2"))
    with db.transaction() as t: t.insert(Offer(id=1, price=3))
    print("DISCARD: saw", work(db, c))
    broken = True
    with db.transaction() as t: t.update(Offer, id=1, price=9)
    work(db, c); broken = False
    q = Quarantine(db, c)
    cells = list(q.cells()); print(len(cells), "in quarantine;", [m for m in dir(q) if not m.startswith("_")])
    import inspect
    q.discard(cells) if "discard" in dir(q) else None
    db.flush("offers", everything=True)
    with db.transaction() as t: t.update(Offer, id=1, price=10)
    print("after discard, flush and a change, before should be price=3:", work(db, c))
