"""The pages of `percolator_core.ui` in Airflow: its login and permissions; chains are found by their DAGs."""
