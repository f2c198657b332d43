"""Processes and forks, threads, logs, lazy imports, batches. Nothing here imports the rest of the library."""
