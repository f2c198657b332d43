"""Pages that are rendered again only when something that they depend on changes.

``pages`` and ``resources`` are loaded; observers keep an index from each resource to what names it, and a
self-contained snapshot of every page. docs/explanation/pagedeps.md has tables, observers and invariants.
"""
