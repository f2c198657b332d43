"""The command ``percolator`` with its subcommands, and functions that make other command lines.

`COMMANDS` registers each subcommand: its name and the location of its function. The function's module is
imported when the command runs or the help is shown. A command imports its heavy dependencies inside its
function, so that ``percolator --help`` is quick and needs neither Spark nor matplotlib.

Other packages add subcommands by entry points of the group `PLUGINS`. An application makes its own command
line with `command_line`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from percolator_core.cli import output as outputs
from percolator_core.cli.options import STORE_OPTIONS, StoreOptions
from percolator_core.cli.output import EXIT_CODES, ExitCode
from percolator_core.notation.error import NotationError


class Registered(NamedTuple):
    """A subcommand: its function, as ``module:function``, and its group in the help."""

    function: str
    panel: str


_START: Final = "Start"
_CHAIN: Final = "Chains"
_RUN: Final = "Running"
_DATA: Final = "Data"
_MAINTENANCE: Final = "Maintenance"

COMMANDS: Final[dict[str, Registered]] = {
    "init": Registered("percolator_core.cli.init:init", _START),
    "doctor": Registered("percolator_core.cli.doctor:doctor", _START),
    "check": Registered("percolator_core.cli.chain:check", _CHAIN),
    "graph": Registered("percolator_core.cli.chain:graph", _CHAIN),
    "schema": Registered("percolator_core.cli.schema:schema", _CHAIN),
    "migrate": Registered("percolator_core.cli.migrate:migrate", _CHAIN),
    "views": Registered("percolator_core.cli.views:views", _CHAIN),
    "load": Registered("percolator_core.cli.load:load", _RUN),
    "replicate": Registered("percolator_core.cli.replicate:replicate", _RUN),
    "consume": Registered("percolator_core.cli.consume:consume", _RUN),
    "worker": Registered("percolator_core.cli.worker:worker", _RUN),
    "drain": Registered("percolator_core.cli.drain:drain", _RUN),
    "wait": Registered("percolator_core.cli.drain:wait", _RUN),
    "up": Registered("percolator_core.cli.up:up", _RUN),
    "status": Registered("percolator_core.cli.status:status", _RUN),
    "ui": Registered("percolator_core.cli.ui:ui", _RUN),
    "tables": Registered("percolator_core.cli.data:tables", _DATA),
    "get": Registered("percolator_core.cli.data:get", _DATA),
    "scan": Registered("percolator_core.cli.data:scan", _DATA),
    "history": Registered("percolator_core.cli.data:history", _DATA),
    "diff": Registered("percolator_core.cli.diff:diff", _DATA),
    "trace": Registered("percolator_core.cli.trace:trace", _DATA),
    "failed": Registered("percolator_core.cli.quarantine:failed", _MAINTENANCE),
    "retry": Registered("percolator_core.cli.quarantine:retry", _MAINTENANCE),
    "discard": Registered("percolator_core.cli.quarantine:discard", _MAINTENANCE),
    "rerun": Registered("percolator_core.cli.rerun:rerun", _MAINTENANCE),
    "locks": Registered("percolator_core.cli.maintenance:locks", _MAINTENANCE),
    "resolve": Registered("percolator_core.cli.maintenance:resolve", _MAINTENANCE),
    "gc": Registered("percolator_core.cli.maintenance:gc", _MAINTENANCE),
    "flush": Registered("percolator_core.cli.base:flush", _MAINTENANCE),
    "compact": Registered("percolator_core.cli.base:compact", _MAINTENANCE),
    "reindex": Registered("percolator_core.cli.maintenance:reindex", _MAINTENANCE),
    "publish": Registered("percolator_core.cli.archive:publish", _MAINTENANCE),
    "backup": Registered("percolator_core.cli.archive:backup", _MAINTENANCE),
    "restore": Registered("percolator_core.cli.archive:restore", _MAINTENANCE),
}
"""The library's subcommands, in the order of the help."""

PLUGINS: Final = "percolator.commands"
"""The group of entry points by which other packages add subcommands: ``name = module:function``."""

EPILOG: Final = "Exit codes:\n" + "\n".join(
    f"{int(code):>3}  {meaning}" for code, meaning in EXIT_CODES.items()
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@cache
def installed() -> Mapping[str, Registered]:
    """Return the subcommands of other packages, sorted by name."""
    found = sorted(entry_points(group=PLUGINS), key=lambda one: one.name)
    return {one.name: Registered(one.value, _MAINTENANCE) for one in found}


class Command(TyperCommand):
    """A subcommand. Its help shows flags without the type ``bool``, because a flag takes no value."""

    def __init__(self, name: str | None, *, help: str | None = None, **settings: Any) -> None:  # noqa: A002
        super().__init__(name, help=unwrapped(help), **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option ``--help``."""
        return without_type(super().get_params(ctx))


class Commands(TyperGroup):
    """Imports subcommands when they are needed, and turns errors into exit codes."""

    program = "percolator"
    own: ClassVar[Mapping[str, Registered]] = COMMANDS
    """The program's subcommands. No other package can replace them, so it is asked after them."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:  # noqa: A002
        super().__init__(help=unwrapped(help), **settings)

    def others(self) -> Mapping[str, Registered]:
        """Return the subcommands of other packages. The search takes up to a tenth of a second."""
        return installed()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of the subcommands, in the order of the help."""
        return list({**self.own, **self.others()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import the subcommand of that name; return None if there is none."""
        registered = self.own.get(cmd_name) or self.others().get(cmd_name)
        if registered is None:
            return None
        module, _, name = registered.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(cmd_name, cls=Command, rich_help_panel=registered.panel)(with_common_options(function))
        command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option ``--help``."""
        return without_type(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand that ``args`` begin with; if there is none, name the most similar one."""
        name = args[0]
        if not name.startswith("-") and name not in self.own and name not in self.others():
            from percolator_core.observers.yaml_file import did_you_mean

            ctx.fail(f"there is no command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand, and raise Interrupted on Ctrl-C; typer itself would exit without a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """Run the command line ``args`` and exit with an `ExitCode`."""
        arguments = list(sys.argv[1:] if args is None else args)
        # `--json` is looked up before the parser runs, so that the parser's own errors are JSON, too.
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        output = outputs.begin(as_json="--json" in options, debug="--debug" in options)
        settings |= {"standalone_mode": False, "prog_name": self.program}
        try:
            code = super().main(arguments or ["--help"], *rest, **settings)
            if not arguments:
                code = ExitCode.USAGE
        except Interrupted:
            message = f"interrupted; nothing is lost: {output.carry_on}"
            code = output.error(outputs.Failure(message, ExitCode.INTERRUPTED))
        except Exception as error:  # noqa: BLE001 - reported in one line; --debug adds the traceback
            code = output.error(error)
            if outputs.is_usage_error(error):
                context = getattr(error, "ctx", None)
                program = "percolator" if context is None else context.command_path
                output.note(f"`{program} --help` shows the usage")
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


class Interrupted(Exception):
    """Ctrl-C, as an exception that typer does not catch."""


def unwrapped(text: str | None) -> str | None:
    """Return a docstring with one line for each paragraph: typer wraps lines, but never joins them."""
    return text and re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))


def without_type(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command; flags among them get an empty text for the type of the value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def with_common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with ``--json`` and ``--debug`` added; `outputs.current` has their values.

    A parameter ``store`` of the type `StoreOptions` becomes the options ``--url`` and ``--namespace``.
    """
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    options = {
        name: (hints[name], parameter.default)
        for name, parameter in signature.parameters.items()
        if hints[name] is not StoreOptions
    }
    takes_store = "store" in signature.parameters
    options |= STORE_OPTIONS if takes_store else {}
    options |= {"as_json": (AsJson, False), "debug": (Debug, False)}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    def command(**values: Any) -> None:
        from percolator_core.cli import logs

        del values["as_json"], values["debug"]
        if takes_store:
            values["store"] = StoreOptions(values.pop("url"), values.pop("namespace"))
        logs.configure(outputs.current())
        try:
            function(**values)
        except NotationError as error:
            raise typer.BadParameter(str(error)) from None

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    return command


def command_line(name: str, group: type[Commands] = Commands) -> typer.Typer:
    """Return a command line with the subcommands of ``group``, which `command_group` makes."""
    return typer.Typer(
        cls=group,
        name=name,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command_group(program: str, commands: Mapping[str, str]) -> type[Commands]:
    """Return the group of an application's subcommands.

    Args:
        program: the name of the program in the help.
        commands: a mapping of each subcommand's name to its function, as ``module:function``.
    """

    class Own(Commands):
        own: ClassVar = {name: Registered(function, "Commands") for name, function in commands.items()}

        def others(self) -> Mapping[str, Registered]:
            return {}

    Own.program = program
    return Own


app = command_line("percolator")


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

    A chain is a folder with chain.yaml and one YAML file per observer. Start with `percolator init DIR`;
    check a chain with `percolator check PATH`.
    """
