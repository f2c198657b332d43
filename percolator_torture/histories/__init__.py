"""Histories of transactions, on disk and in memory, and the state that they left."""
