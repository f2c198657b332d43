"""The pages: a FastAPI application behind Airflow's login and permissions, over `percolator_core.admin`."""
