"""The private server behind ``embedded:FOLDER``.

The watcher imports this package under another name, without the library: so nothing is imported here.
"""
