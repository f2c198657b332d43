"""Tools that put the transactions to the proof: histories, their recorder and their checker."""
