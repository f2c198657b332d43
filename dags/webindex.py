"""Airflow runs the web index; see ``airflow:`` in its chain.yaml."""

from percolator_airflow import chain_dags

globals().update(chain_dags("../observers/webindex"))
