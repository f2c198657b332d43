"""Typed tables: models of rows, and their use in transactions and snapshots."""
