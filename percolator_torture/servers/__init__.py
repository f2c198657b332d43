"""Servers for tests that kill them."""
