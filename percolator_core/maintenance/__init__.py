"""Clean-up of a namespace: locks of dead clients, and versions that no snapshot can read."""
