"""What the library is measured beside: other stores, started and driven as their users would."""
