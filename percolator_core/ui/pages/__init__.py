"""The pages: a module for each tab, with its ``router``."""
