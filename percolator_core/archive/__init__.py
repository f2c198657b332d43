"""Versions of tables and namespaces outside the store: publications in an open format, and backups."""
