"""Notifications: dirty marks, acknowledgements, and the active set of observers (paper, section 2.4)."""
