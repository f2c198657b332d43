"""Typed tables: models of rows in transactions and snapshots."""
