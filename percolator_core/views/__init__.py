"""Incremental views over typed tables.

- `planner` makes the `plan` of a view from its SQL; `view` and `class_text` make the SQL of a `View` class.
- `sinks` and `groups` have the arithmetic of deltas. Plans and deltas need no store.
- `runs` has the runs of a view's observers; `stored` reads and writes the view's tables.
- `filling`, `life` and `swapping` fill the versions of a view, record their states, show and drop them.
- `recompute` computes a view anew, to compare it.
"""
