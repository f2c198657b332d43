"""Tests of the transactions under faults: histories, their recorder and their checker."""
