"""Typed tables: models of rows, and what transactions and snapshots do with them."""
