"""The readers, one for each format, which convert a split of a file to records."""
