"""What an error means for what was sent: not executed, lost on the way, or refused for good."""

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
"""The connection broke: whatever was not answered may or may not have been executed."""

_NOT_EXECUTED: Final = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    NoScriptError,
    ReadOnlyError,
    TryAgainError,
)
"""A cluster's MOVED is an `AskError` too, and MASTERDOWN a `ClusterDownError`."""

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
"""What a master says that became a replica while it waited for its own."""


def is_read_only(trouble: Exception | None) -> bool:
    """Whether a replica refused to write; Redis 6.2 wraps the refusal in words of its own."""
    return isinstance(trouble, ReadOnlyError) or (
        isinstance(trouble, RedisError) and _says(str(trouble), "READONLY")
    )


class Verdict(NamedTuple):
    """What an error reply means.

    ``failure`` is what to raise, None if the command is to be sent again; ``executed_maybe`` says whether a
    script may have written something before it failed.
    """

    failure: PercolatorError | None
    executed_maybe: bool = False


def judge(error: RedisError) -> Verdict:
    """What an error reply means."""
    text = str(error)
    if (
        isinstance(error, _NOT_EXECUTED)
        or text.startswith((*_NOT_EXECUTED_WORDS, *_DEMOTED_WORDS))
        or _says(text, *_NOT_EXECUTED_WORDS)
    ):
        return Verdict(None)
    # A script that has written is not stopped for want of memory or disk.
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        return Verdict(
            StoreUnavailable(
                "the store is out of memory and refuses writes: "
                "raise maxmemory, or collect garbage and drop tables"
            )
        )
    if text.startswith("MISCONF") or _says(text, "MISCONF"):
        return Verdict(StoreUnavailable(f"the store refuses writes ({text}): mend its disk"))
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
    """Whether a script ended with such an error, which Redis 6.2 wraps in words of its own."""
    return any(f"-{word}" in text for word in words)
