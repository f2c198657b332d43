"""Check histories against snapshot isolation."""
