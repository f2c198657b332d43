"""Errors between Spark's processes: a sentence goes in, and comes out again.

Spark passes the text of an exception on, with the traceback of Python in front and that of Java behind. A
sentence needs no traceback: so it is left out where it is ours, and `plain_table_error` finds the sentence.
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
"""What Spark's worker looks at when it writes an exception down. The process ends after it."""

_KINDS: Final[dict[str, type[PercolatorError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, PercolatorError)
    # These are made of other things than a message.
    and name not in {"CyclicChain", "TransactionConflict", "TransactionAborted", "CommitUndetermined"}
}


@contextmanager
def as_sentence() -> Iterator[None]:
    """Errors of ours leave the process as one sentence; what is wrong with a value is one of ours."""
    try:
        yield
    except ValueError as error:
        os.environ[_HIDE] = "1"
        raise ConfigurationError(str(error)) from None
    except PercolatorError as error:
        os.environ[_HIDE] = "1"
        raise error from None


def plain_table_error(error: BaseException) -> PercolatorError:
    """The error of ours within one of Spark's; of another one, what it says in one line."""
    text = str(error)
    for name, message in re.findall(r"(?:percolator_core\.errors\.)(\w+): (.+)", text):
        if name in _KINDS:
            return _KINDS[name](message.strip())
        return PercolatorError(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PercolatorError((lines or [type(error).__name__])[0][:500])
