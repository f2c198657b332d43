"""``python -m observers.webindex``: the web index's demonstration and its search."""

from observers.webindex.program import program
from percolator_core.cli.app import command_group, command_line

app = command_line(
    "webindex",
    command_group(
        program(),
        {
            "demo": "observers.webindex.demo.command:demo",
            "search": "observers.webindex.search_command:search",
        },
    ),
)


@app.callback()
def webindex() -> None:
    """A web index that keeps itself up to date: build one of real documents, and search it."""


if __name__ == "__main__":
    app()
