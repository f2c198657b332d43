"""The client processes of a run, and their faults."""
