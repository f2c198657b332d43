"""How people write and read keys, values, times and amounts: on the command line, and on pages.

What is shown can be given back. What cannot be understood raises a `NotationError`, whose text is a sentence
with the mend.
"""
