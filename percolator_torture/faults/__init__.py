"""Faults, planned, and made to happen where the library issues its operations; clients that a test stops."""
