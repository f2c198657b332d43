"""Pass errors of this library through Spark's processes as one sentence.

Spark reports an exception as text, between a traceback of Python and a traceback of Java. For errors of this
library `as_sentence` removes Python's traceback, and `plain_table_error` finds the sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from percolator_core import errors
from percolator_core.errors import ConfigurationError, PercolatorError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's worker process reads this variable when it reports an exception, just before its end."""

_KINDS: Final[dict[str, type[PercolatorError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, PercolatorError)
    # The constructors of these errors have other arguments than a message.
    and name not in {"CyclicChain", "TransactionConflict", "TransactionAborted", "CommitUndetermined"}
}


@contextmanager
def as_sentence() -> Iterator[None]:
    """Report errors of this library without a traceback; a ValueError becomes a ConfigurationError."""
    try:
        yield
    except ValueError as error:
        os.environ[_HIDE] = "1"
        raise ConfigurationError(str(error)) from None
    except PercolatorError as error:
        os.environ[_HIDE] = "1"
        raise error from None


def plain_table_error(error: BaseException) -> PercolatorError:
    """Return the error of this library that Spark's error contains, else an error with Spark's first line."""
    text = str(error)
    for name, message in re.findall(r"(?:percolator_core\.errors\.)(\w+): (.+)", text):
        if name in _KINDS:
            return _KINDS[name](message.strip())
        return PercolatorError(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PercolatorError((lines or [type(error).__name__])[0][:500])
