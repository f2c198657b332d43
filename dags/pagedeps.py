"""Airflow runs the dependency tracker; see ``airflow:`` in its chain.yaml."""

from percolator_airflow import chain_dags

globals().update(chain_dags("../observers/pagedeps"))
