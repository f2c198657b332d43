"""Sorts errors by their meaning for a request: not executed, maybe executed, or refused for good."""

from __future__ import annotations

from typing import Final, NamedTuple

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from percolator_core.errors import PercolatorError, StoreUnavailable

LOST: Final = (RedisConnectionError, RedisTimeoutError, InvalidResponse, OSError)
"""The connection was lost: a command without a reply may or may not have been executed."""

_NOT_EXECUTED: Final = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    NoScriptError,
    ReadOnlyError,
    TryAgainError,
)
"""In redis-py, MOVED is an `AskError` too, and MASTERDOWN a `ClusterDownError`."""

_ANSWERS: Final = (AuthenticationError, BusyLoadingError)
"""Error replies that redis-py counts among lost connections, although more replies may follow them."""

_FORBIDDEN: Final = ("NOPERM", "permissions", "The user executing the script can't")

_NOT_EXECUTED_WORDS: Final = (
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "READONLY",
    "NOREPLICAS",
)

_DEMOTED_WORDS: Final = (
    "UNBLOCKED",
    "WAIT cannot be used with replica",
    "WAITAOF cannot be used with replica",
)
"""Errors of a master that became a replica while it waited for its replicas."""


def is_read_only(trouble: Exception | None) -> bool:
    """Return True if a replica refused a command, or a script, that writes."""
    return isinstance(trouble, ReadOnlyError) or (
        isinstance(trouble, RedisError) and _says(str(trouble), "READONLY")
    )


class Verdict(NamedTuple):
    """The meaning of an error reply.

    ``failure`` is the error to raise, None if the command is to be sent again. ``executed_maybe`` is True if
    a script may have written something before it failed.
    """

    failure: PercolatorError | None
    executed_maybe: bool = False


def judge(error: RedisError) -> Verdict:
    """Return the meaning of an error reply."""
    text = str(error)
    if (
        isinstance(error, _NOT_EXECUTED)
        or text.startswith((*_NOT_EXECUTED_WORDS, *_DEMOTED_WORDS))
        or _says(text, *_NOT_EXECUTED_WORDS)
    ):
        return Verdict(None)
    # The server does not stop a script for lack of memory or disk once the script has written.
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        return Verdict(
            StoreUnavailable(
                "the store is out of memory and refuses writes: "
                "raise maxmemory, or collect garbage and drop tables"
            )
        )
    if text.startswith("MISCONF") or _says(text, "MISCONF"):
        return Verdict(StoreUnavailable(f"the store refuses writes ({text}): repair its disk"))
    if isinstance(error, AuthenticationError):
        return Verdict(StoreUnavailable(f"the store refuses the login ({text}): check user and password"))
    if isinstance(error, NoPermissionError) or any(words in text for words in _FORBIDDEN):
        return Verdict(
            PercolatorError(
                f"the store's user may not do this ({text}): allow it in the server's access rules (ACL); "
                "ACL LOG names the command"
            ),
            executed_maybe="script" in text,
        )
    return Verdict(PercolatorError(f"the store answered: {text}"), executed_maybe=True)


def _says(text: str, *words: str) -> bool:
    """Return True if a script ended with one of these errors; Redis 6.2 adds text around the error."""
    return any(f"-{word}" in text for word in words)


def as_answer(error: RedisError) -> RedisError:
    """Return an error that is the reply to a command; raise one that ends the connection."""
    if isinstance(error, RedisConnectionError) and not isinstance(error, _ANSWERS):
        raise error  # for example: too many connections
    return error
