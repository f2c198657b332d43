"""The pages: a FastAPI application on `percolator_core.admin`, for any program that serves it (`host`)."""
