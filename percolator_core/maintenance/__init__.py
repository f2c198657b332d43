"""Locks that dead clients left, and versions that no snapshot can see: how they are removed."""
