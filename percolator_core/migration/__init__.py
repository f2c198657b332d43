"""Migrations: the differences between declarations and tables, and the online changes that end them."""
