"""What tells workers that a cell changed: dirty marks, acknowledgements, and the active set (section 2.4)."""
