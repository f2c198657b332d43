"""The pages, a module for each tab; every module has a ``router``."""
