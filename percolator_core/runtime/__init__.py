"""Processes and forks, threads, logs, lazy imports. Nothing here knows the rest of the library."""
