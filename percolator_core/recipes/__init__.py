"""Ready-made parts of chains. They use only the public methods of a transaction."""

from percolator_core.recipes.combine import CombineQueue
from percolator_core.recipes.counter import Counter
from percolator_core.recipes.export import ExportQueue, Item
from percolator_core.recipes.index import Difference, SecondaryIndex
from percolator_core.recipes.sinks import NotTaken, Sink
from percolator_core.recipes.sinks.http_server import HTTPSink
from percolator_core.recipes.sinks.kafka import KafkaSink
from percolator_core.recipes.sinks.opensearch import OpenSearchSink
from percolator_core.recipes.sinks.postgresql import PostgresSink, PostgresTable
from percolator_core.recipes.sinks.sqlite_file import SQLiteSink, SQLiteTable

__all__ = [
    "CombineQueue",
    "Counter",
    "Difference",
    "ExportQueue",
    "HTTPSink",
    "Item",
    "KafkaSink",
    "NotTaken",
    "OpenSearchSink",
    "PostgresSink",
    "PostgresTable",
    "SQLiteSink",
    "SQLiteTable",
    "SecondaryIndex",
    "Sink",
]
