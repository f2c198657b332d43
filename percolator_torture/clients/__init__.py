"""The client processes of a run, and what strikes them."""
