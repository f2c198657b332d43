"""Checks histories against snapshot isolation."""
