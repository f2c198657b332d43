"""The command ``percolator``: which subcommands there are, and what all of them share.

A subcommand is registered by its line in `COMMANDS`: its name, and where its function is. The module is
imported when the command, or its help, is asked for. Keep such modules light: what a command needs beyond the
frame it imports in its function. So ``percolator --help`` is quick and needs neither Spark nor matplotlib.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import typer
from typer.core import TyperGroup

from percolator_core.cli import output as outputs
from percolator_core.cli.output import EXIT_CODES, ExitCode, Output
from percolator_core.notation.error import NotationError


class Registered(NamedTuple):
    """Where a subcommand's function is, as ``module:function`` in this package, and its group in the help."""

    function: str
    panel: str


_START: Final = "Start"
_CHAIN: Final = "Chains"
_RUN: Final = "Running"
_DATA: Final = "Data"
_CARE: Final = "Care"

COMMANDS: Final[dict[str, Registered]] = {
    "init": Registered("init:init", _START),
    "demo": Registered("demo:demo", _START),
    "doctor": Registered("doctor:doctor", _START),
    "check": Registered("chain:check", _CHAIN),
    "graph": Registered("chain:graph", _CHAIN),
    "schema": Registered("schema:schema", _CHAIN),
    "load": Registered("load:load", _RUN),
    "worker": Registered("worker:worker", _RUN),
    "drain": Registered("drain:drain", _RUN),
    "wait": Registered("wait:wait", _RUN),
    "up": Registered("up:up", _RUN),
    "status": Registered("status:status", _RUN),
    "tables": Registered("data:tables", _DATA),
    "get": Registered("data:get", _DATA),
    "scan": Registered("data:scan", _DATA),
    "history": Registered("data:history", _DATA),
    "diff": Registered("diff:diff", _DATA),
    "trace": Registered("trace:trace", _DATA),
    "search": Registered("search:search", _DATA),
    "failed": Registered("quarantine:failed", _CARE),
    "retry": Registered("quarantine:retry", _CARE),
    "discard": Registered("quarantine:discard", _CARE),
    "rerun": Registered("rerun:rerun", _CARE),
    "locks": Registered("locks:locks", _CARE),
    "resolve": Registered("locks:resolve", _CARE),
    "gc": Registered("gc:gc", _CARE),
    "reindex": Registered("reindex:reindex", _CARE),
    "bench": Registered("bench:bench", _CARE),
    "torture": Registered("torture:torture", _CARE),
}
"""Every subcommand, in the order of the help."""

EPILOG: Final = "Exit codes:\n" + "\n".join(
    f"{int(code):>3}  {meaning}" for code, meaning in EXIT_CODES.items()
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class Commands(TyperGroup):
    """The subcommands, imported when they are needed; and the one place where errors become exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names of the subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The subcommand of that name, or None."""
        registered = COMMANDS.get(cmd_name)
        if registered is None:
            return None
        function = getattr(
            importlib.import_module(_module(registered)), registered.function.partition(":")[2]
        )
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(cmd_name, rich_help_panel=registered.panel)(with_common_options(function))
        command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. An interrupt is kept from typer, which would end without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """Run the command line ``args`` and exit with an `ExitCode`."""
        arguments = list(sys.argv[1:] if args is None else args)
        # Looked for here and not only by the parser, so that its own refusals are told in the same way.
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        output = outputs.begin(as_json="--json" in options, debug="--debug" in options)
        settings["standalone_mode"] = False
        settings.setdefault("prog_name", "percolator")
        try:
            code = super().main(arguments, *rest, **settings)
        except Interrupted:
            code = interrupted(output)
        except Exception as error:  # noqa: BLE001 - the last resort: told in one line, with the traceback on demand
            code = output.error(error)
            if outputs.is_usage_error(error):
                output.note(_hint(error))
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


class Interrupted(Exception):
    """Ctrl-C, on its way past typer."""


def interrupted(output: Output) -> ExitCode:
    """Report a Ctrl-C."""
    return output.error(
        outputs.Failure(f"interrupted; nothing is lost: {output.carry_on}", ExitCode.INTERRUPTED)
    )


def with_common_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function with ``--json`` and ``--debug`` behind its own options; `outputs.current` knows them."""
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    own = [parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items()]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("as_json", AsJson), ("debug", Debug))
    ]

    def command(**values: Any) -> None:
        from percolator_core.cli import logs

        del values["as_json"], values["debug"]
        logs.configure(outputs.current())
        try:
            function(**values)
        except NotationError as error:
            raise typer.BadParameter(str(error)) from None

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    command.__signature__ = signature.replace(parameters=[*own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *common]}
    return command


def _module(registered: Registered) -> str:
    return f"percolator_core.cli.{registered.function.partition(':')[0]}"


def _hint(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context is not None else 'percolator'} --help` shows how it is used"


app = typer.Typer(
    cls=Commands,
    name="percolator",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from percolator_core import __version__

        outputs.current().result({"version": __version__}, f"percolator {__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def percolator(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Incremental processing with transactions and observers on Redis.

    A chain is a folder with chain.yaml and one YAML file an observer. Start with `percolator init DIR` or
    `percolator demo`; look at a chain with `percolator check PATH`.
    """
