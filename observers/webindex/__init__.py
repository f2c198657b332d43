"""An incremental web index: the application of the paper's introduction.

``documents`` are loaded. Observers parse them, cluster duplicates, invert links, rank pages, and export one
entry for each cluster into a full-text index. Tables, observers and invariants are described in
docs/explanation/webindex.md.
"""
