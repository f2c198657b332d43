"""Errors of tasks: one sentence, and whether Airflow may try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from percolator_core.errors import ConfigurationError, PercolatorError, UnknownColumn, UnknownTable

_FINAL: Final = (ConfigurationError, UnknownColumn, UnknownTable)
"""What stays as it is until a person mends it."""


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turns errors of the library into Airflow's, without the traceback of the library's inside.

    Raises:
        AirflowFailException: no retry can mend it: a chain, a connection or a name that cannot be.
        AirflowException: a later try may go well, as when the store was away.
    """
    try:
        yield
    except _FINAL as error:
        raise AirflowFailException(str(error)) from None
    except PercolatorError as error:
        raise AirflowException(str(error)) from None
