"""Transactions: timestamps, snapshots, scans, buffered writes, the two-phase commit, left locks."""
