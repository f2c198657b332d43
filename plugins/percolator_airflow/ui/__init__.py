"""The pages: a FastAPI application on `percolator_core.admin`, with Airflow's login and permissions."""
