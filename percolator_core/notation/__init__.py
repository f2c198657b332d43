"""The text form of keys, values, times and amounts, on the command line and on web pages.

Printed text can be entered again. Text that cannot be parsed raises `NotationError`, whose message says what
to write.
"""
