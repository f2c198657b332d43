"""Planned faults of the operations that the library sends, and clients that a test stops."""
