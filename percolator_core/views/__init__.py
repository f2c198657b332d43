"""Incremental views over typed tables: the plan of a view, and its arithmetic of deltas. No store."""
