"""The graph of a chain as a picture."""
