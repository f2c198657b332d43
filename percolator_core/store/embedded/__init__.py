"""The private server behind ``embedded:FOLDER``.

The watcher imports this package by itself, under another name: nothing is imported here.
"""
