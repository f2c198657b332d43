"""One reader a format: each turns a split of a file into records."""
