"""The tables of a namespace, and the changes of their definitions."""
