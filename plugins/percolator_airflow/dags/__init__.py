"""The four DAGs of a chain, created from its declaration."""
