"""Ready-made parts of chains. They use only the public methods of a transaction."""

from percolator_core.recipes.combine import CombineQueue
from percolator_core.recipes.counter import Counter
from percolator_core.recipes.export import ExportQueue, Item
from percolator_core.recipes.index import Difference, SecondaryIndex
from percolator_core.recipes.sinks import HTTPSink, KafkaSink, NotTaken, Sink, SQLiteSink

__all__ = [
    "CombineQueue",
    "Counter",
    "Difference",
    "ExportQueue",
    "HTTPSink",
    "Item",
    "KafkaSink",
    "NotTaken",
    "SQLiteSink",
    "SecondaryIndex",
    "Sink",
]
