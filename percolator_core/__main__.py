"""``python -m percolator_core`` is the command ``percolator``."""

from percolator_core.cli import main

if __name__ == "__main__":
    main()
