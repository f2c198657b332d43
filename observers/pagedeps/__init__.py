"""Render pages again only when something that they depend on changes.

``pages`` and ``resources`` are loaded. Observers maintain an index from each resource to the pages and style
sheets that name it, and a self-contained snapshot of every page. Tables, observers and invariants are
described in docs/explanation/pagedeps.md.
"""
