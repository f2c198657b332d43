"""The suites, and what they report."""
