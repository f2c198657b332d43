"""Turn errors of the library into errors of Airflow, which retry the task or fail it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from percolator_core.errors import ConfigurationError, PercolatorError, UnknownColumn, UnknownTable

_FINAL: Final = (ConfigurationError, UnknownColumn, UnknownTable)
"""Errors that a retry cannot fix: a person has to correct something."""


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn errors of the library into Airflow's, without the library's traceback.

    Raises:
        AirflowFailException: the chain, the connection or a name is invalid; a retry cannot succeed.
        AirflowException: a retry may succeed, for example after the store was unavailable.
    """
    try:
        yield
    except _FINAL as error:
        raise AirflowFailException(str(error)) from None
    except PercolatorError as error:
        raise AirflowException(str(error)) from None
