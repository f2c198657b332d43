"""An incremental web index: the application of the paper's introduction.

``documents`` are loaded; observers parse them, cluster duplicates, invert links, rank pages and export one
entry for each cluster into a full-text index.
docs/explanation/webindex.md has tables, observers and invariants.
"""
