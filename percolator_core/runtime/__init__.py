"""Processes and forks, threads, logs, lazy imports. Nothing here imports the rest of the library."""
