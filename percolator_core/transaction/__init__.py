"""Transactions: timestamps, snapshots, scans, buffered writes, two-phase commit, locks of dead clients."""
