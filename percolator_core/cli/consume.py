"""``consume``: write the records of a Kafka topic into a table."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.load import parse_fields
from percolator_core.cli.options import ChainFirst, SourcePatience, StoreOptions, load_chain
from percolator_core.cli.signals import stopping
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status

    from percolator_core.kafka import ConsumptionProgress, ConsumptionReport

_COUNTED: Final = ("read", "new", "changed", "unchanged", "deleted", "bad", "behind")

Servers = Annotated[
    str, typer.Argument(metavar="SERVERS", envvar="PERCOLATOR_KAFKA", help="Kafka: HOST:PORT,…")
]
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
TableOption = Annotated[str, typer.Option("--table", metavar="TABLE", help="The table to write into.")]
Name = Annotated[
    str,
    typer.Option(
        "--name", metavar="NAME", help="The consumer, whose offsets are stored; also its group in Kafka."
    ),
]
Fields = Annotated[
    str | None, typer.Option(metavar="FIELD[=COLUMN],…", help="Take only these fields, under these names.")
]
Whole = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Put the whole value into this column of a raw table.")
]
Once = Annotated[bool, typer.Option("--once", help="End at the ends that the partitions have at the start.")]
Reset = Annotated[
    bool,
    typer.Option(
        "--reset", help="Go on at the first record that a partition has, if it no longer has the next one."
    ),
]
MaxBad = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Stop if more records than this are malformed.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Settings of librdkafka, a line NAME=VALUE each, such as security.protocol."
    ),
]


def consume(
    servers: Servers,
    *,
    topic: Topic,
    table: TableOption,
    name: Name,
    columns: Fields = None,
    column: Whole = None,
    chain: ChainFirst = None,
    once: Once = False,
    reset: Reset = False,
    max_bad: MaxBad = None,
    patience: SourcePatience = 300.0,
    config: Config = None,
    store: StoreOptions,
) -> None:
    """Write the records of a Kafka topic into a table, each exactly once.

    Runs until SIGINT or SIGTERM, or with --once until it has caught up. The next run continues. Several
    processes of one name share the partitions.
    """
    from percolator_core.kafka import consume as consume_topic

    output = outputs.current()
    declared = None if chain is None else load_chain(chain)
    stopped = threading.Event()
    with (
        store.of_chain(declared) if declared else store.existing() as db,
        output.status("connecting to Kafka") as status,
        stopping(stopped.set) as received,
    ):
        report = consume_topic(
            db,
            servers,
            topic,
            table,
            name=name,
            columns=parse_fields(columns),
            column=column,
            chain=declared,
            once=once,
            reset=reset,
            max_bad=max_bad,
            patience=patience,
            settings=None if config is None else read_settings(config),
            stop=stopped.is_set,
            progress=_shown(status),
        )
    _print(report)
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt


def read_settings(path: Path) -> dict[str, str]:
    """Read lines ``NAME=VALUE``; blank lines and lines with ``#`` are left out. Raises ConfigurationError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings in {path} cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise ConfigurationError(f"{path}:{number}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _shown(status: Status) -> Callable[[ConsumptionProgress], None]:
    def show(now: ConsumptionProgress) -> None:
        written = now.new + now.changed + now.deleted
        status.update(
            f"{count_of(now.partitions, 'partition')}: {now.read:,} read, {written:,} written, "
            f"{now.bad:,} put aside, {now.behind:,} behind"
        )

    return show


def _print(report: ConsumptionReport) -> None:
    output = outputs.current()
    shown = outputs.table("consumer", *(f">{name}" for name in _COUNTED))
    shown.add_row(report.name, *(f"{getattr(report, name):,}" for name in _COUNTED))
    output.result(report.to_json(), shown)
    if report.bad:
        output.note(
            f"{count_of(report.bad, 'record')} put aside: `percolator scan kafka_aside` lists them with the "
            "reasons"
        )
