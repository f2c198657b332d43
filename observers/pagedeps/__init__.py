"""Render pages again only when something that they depend on changes.

``pages`` and ``resources`` are loaded; observers maintain an index from each resource to the pages and style
sheets that name it, and a self-contained snapshot of every page.
docs/explanation/pagedeps.md has tables, observers and invariants.
"""
