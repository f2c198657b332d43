"""What a table is: columns and their types, its key, how it is cut into tablets, what can be asked of it.

Nothing here talks to a store, and nothing is of pydantic: models of tables (`percolator_core.tables`) are
turned into these definitions once.
"""
