"""The four DAGs of a chain, made from its declaration."""
