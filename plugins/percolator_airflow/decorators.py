"""``@task.percolator``: a task that is one transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.hook import PercolatorHook, plain_failures


class TransactionOperator(DecoratedOperator):
    """Run a function in a transaction and commit it; see `percolator_task`."""

    custom_operator_name = "@task.percolator"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", "conn_id", "namespace")
    ui_color = "#dcebf5"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        attempts: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)
        if attempts < 1:
            raise ValueError(f"attempts is 1 or more, not {attempts}")
        self.conn_id = conn_id
        self.namespace = namespace
        self.attempts = attempts

    def execute(self, context: Any) -> Any:
        """Return the function's result after its transaction has committed."""
        arguments = self.determine_kwargs({**context, **self.op_kwargs})
        with plain_failures(), PercolatorHook(self.conn_id, self.namespace or None).get_conn() as db:
            value = db.run(
                lambda transaction: self.python_callable(transaction, *self.op_args, **arguments),
                self.attempts,
            )
        return self._handle_output(return_value=value)


def percolator_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """Make a task of a function whose first argument is an open transaction.

    The transaction commits when the function returns. On a conflict the whole function runs again, so it must
    have no effect outside the transaction. The task's result is the result of the run that committed.

    Args:
        python_callable: the function; its arguments are the transaction and the arguments of the task.
        multiple_outputs: see ``@task``.
        kwargs: ``conn_id``, ``namespace`` (default: the connection's, or else ``default``), ``attempts`` (1
            or more, default 10), and the arguments of every operator.

    Raises:
        ValueError: the function takes no argument, or is asynchronous.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        return task_decorator_factory(
            python_callable=_without_transaction(function),
            multiple_outputs=multiple_outputs,
            decorated_operator_class=TransactionOperator,
            **kwargs,
        )

    return decorate if python_callable is None else decorate(python_callable)


def _without_transaction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remove the transaction from the function's signature: callers of the task do not pass it."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError("@task.percolator takes a plain function: write 'def' and 'return'")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ValueError("a @task.percolator function takes the transaction first: write 'def name(t, …)'")

    @functools.wraps(function)
    def called(transaction: Any, *args: Any, **kwargs: Any) -> Any:
        return function(transaction, *args, **kwargs)

    called.__signature__ = inspect.signature(function).replace(parameters=parameters[1:])  # type: ignore[attr-defined]
    return called
