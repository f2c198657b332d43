"""The peers of the library: other stores, started and used as their users do it."""
