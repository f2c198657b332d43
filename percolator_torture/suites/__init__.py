"""The suites, and their reports."""
