"""A web index that keeps itself up to date: the application of the paper's introduction.

``documents`` are loaded; observers parse them, cluster duplicates, invert links, rank pages and export one
entry a cluster into a full-text index. docs/explanation/webindex.md has tables, observers and invariants.
"""
