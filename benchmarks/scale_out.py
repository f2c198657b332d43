"""Move a chain from one machine to a Redis Cluster on several machines, and measure each size.

    sudo .venv/bin/python benchmarks/scale_out.py --machines 1 2 4

A machine is a network namespace of Linux with an address of its own, and a control group that limits its
processor time. The program runs the commands of docs/how-to/scale-out.md in them, with the same steps for
each number of machines: one server and one worker on the first machine; a backup while the worker goes on; a
Redis server on each machine, joined to a cluster; the restore; a worker on each machine; a load by Spark with
an executor on each machine. At the end every row must have been processed once. The exit code is 1 otherwise.

It needs root, `ip` of iproute2, redis-server and redis-cli, and control groups that may be changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
BIN: Final = Path(sys.executable).parent
PORT: Final = 6379
SPARK_PORT: Final = 7077
PATIENCE: Final = 600.0
"""Seconds until a step of a machine counts as failed. A quota makes everything slower."""

CHAIN: Final = """\
version: 1
chain: words
tables:
  documents: {tablets: 32}
  counts: {tablets: 32}
"""
OBSERVER: Final = """\
version: 1
observer: count
observe: documents.text
function: words.steps:count
writes: [counts.words, counts.runs]
"""
STEPS: Final = """\
def count(t, cell):
    words = (t.get("documents", cell.row, "text") or b"").split()
    runs = int(t.get("counts", cell.row, "runs") or 0)
    t.set("counts", cell.row, "words", b"%d" % len(words))
    t.set("counts", cell.row, "runs", b"%d" % (runs + 1))
"""


class Failed(Exception):
    """A step did not do what it should."""


@dataclass
class Machine:
    """A network namespace with an address, and a control group with a share of a processor."""

    name: str
    address: str
    group: Path
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, arguments: Sequence[str | Path]) -> list[str]:
        """Return a command that runs ``arguments`` on this machine."""
        # `ip netns exec` mounts another /sys, so the process enters the control group before it.
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.group / "cgroup.procs")]
        return [*enter, "ip", "netns", "exec", self.name, *map(str, arguments)]

    def run(self, *arguments: str | Path) -> str:
        """Run a command to its end, and return its output. Raises Failed if it fails."""
        said = f"{' '.join(map(str, arguments))} on {self.name}"
        return _output(self.command(arguments), self.folder, said)

    def start(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Start a command, which `stop` ends."""
        log = (self.folder / f"{self.name}-{len(self.started)}.log").open("w")
        with log:
            process = subprocess.Popen(
                self.command(arguments),
                cwd=self.folder,
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.started.append(process)
        return process

    def expect_alive(self) -> None:
        """Raise Failed if a process has ended with an error; the message has its last words."""
        for number, process in enumerate(self.started):
            if process.poll():
                log = (self.folder / f"{self.name}-{number}.log").read_text()
                raise Failed(f"{process.args!r} on {self.name} ended: {log[-1000:]}")

    def stop(self) -> None:
        """End all processes that were started here, in good order."""
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()


def _output(command: Sequence[str], folder: Path, said: str) -> str:
    """Run a command in a folder, and return its output. Raises Failed, which begins with ``said``."""
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise Failed(f"{said}: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def machines(count: int, share: float, folder: Path) -> Iterator[list[Machine]]:
    """Make machines that reach each other, and nothing else; ``share`` of a processor for each."""
    prefix = f"pc{os.getpid()}"
    switch = f"{prefix}-switch"
    with ExitStack() as stack:
        _namespace(stack, switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        made = []
        for number in range(1, count + 1):
            one = Machine(
                f"{prefix}-{number}", f"10.77.0.{number}", _group(stack, f"{prefix}-{number}", share), folder
            )
            _namespace(stack, one.name)
            _ip(
                "-n",
                one.name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                f"port{number}",
                "netns",
                switch,
            )
            _ip("-n", one.name, "address", "add", f"{one.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", one.name, "link", "set", link, "up")
            _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge0", "up")
            stack.callback(one.stop)
            made.append(one)
        yield made


def _namespace(stack: ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "delete", name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"ip {' '.join(arguments)}: {done.stderr.strip()}: this needs root and iproute2")


def _group(stack: ExitStack, name: str, share: float) -> Path:
    """Make a control group of version 2 or 1 with a share of a processor."""
    unified = Path("/sys/fs/cgroup")
    second = (unified / "cgroup.controllers").exists()
    group = unified / name if second else unified / "cpu" / name
    try:
        group.mkdir()
        stack.callback(group.rmdir)
        if second:
            (group / "cpu.max").write_text(f"{int(share * 100_000)} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
    except OSError as error:
        raise Failed(f"{error}: control groups of the processor cannot be changed here") from None
    return group


@dataclass
class Figures:
    """The runs of observers a second, and the rows a second of Spark's load, by the number of machines."""

    machines: int
    runs: float
    loaded: float = 0.0


class Trial:
    """The way from one machine to ``count`` machines."""

    def __init__(self, made: list[Machine], folder: Path, rows: int, *, spark: bool) -> None:
        self.made = made
        self.first = made[0]
        self.folder = folder
        self.rows = rows
        self.spark = spark
        self.url = f"redis://{self.first.address}:{PORT}/0"

    def run(self) -> Figures:
        """Do all steps, and return the figures. Raises Failed if a row was processed never or twice."""
        self._project()
        self._server(self.first, PORT)
        self._percolator("load", self._lines(0), "--table", "documents", "--key", "id", "--chain", "words")
        worker = self._worker(self.first)
        self._until_idle()
        if len(self.made) > 1:
            self._move(worker)
        else:
            worker.terminate()
            worker.wait(PATIENCE)
        self._percolator("load", self._lines(1), "--table", "documents", "--key", "id", "--chain", "words")
        runs = self._drain_with_all()
        loaded = self._load_with_spark() if self.spark else 0.0
        self._check(3 if self.spark else 2)
        return Figures(len(self.made), runs, loaded)

    def _move(self, worker: subprocess.Popen[str]) -> None:
        """Go from the single server to a cluster: a first backup beside the worker, a short last one."""
        self._percolator("backup", "file:saved")
        worker.terminate()
        worker.wait(PATIENCE)
        self._percolator("backup", "file:saved")
        for machine in self.made:
            self._server(machine, PORT + 1, "--cluster-enabled", "yes")
        self._form()
        self.url = "redis+cluster://" + ",".join(f"{one.address}:{PORT + 1}" for one in self.made)
        self._percolator("restore", "file:saved", "--namespace", "words")

    def _form(self) -> None:
        """Join the servers. redis-cli creates clusters of three primaries or more; two are joined by hand."""
        nodes = [f"{one.address}:{PORT + 1}" for one in self.made]
        if len(nodes) > 2:
            self.first.run("redis-cli", "--cluster", "create", *nodes, "--cluster-yes")
        else:
            ask = [["redis-cli", "-h", one.address, "-p", str(PORT + 1)] for one in self.made]
            self.first.run(*ask[0], "CLUSTER", "ADDSLOTSRANGE", "0", "8191")
            self.first.run(*ask[1], "CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
            self.first.run(*ask[1], "CLUSTER", "SET-CONFIG-EPOCH", "2")
            self.first.run(*ask[0], "CLUSTER", "MEET", self.made[1].address, str(PORT + 1))
        ready = (f"cluster_known_nodes:{len(nodes)}\n", "cluster_state:ok\n")
        for one in self.made:
            info = ("redis-cli", "-h", one.address, "-p", str(PORT + 1), "CLUSTER", "INFO")

            def formed(info: tuple[str, ...] = info) -> bool:
                said = self.first.run(*info)
                return all(line in said for line in ready)

            self._await("the cluster", formed)

    def _drain_with_all(self) -> float:
        """Start a worker on each machine, and return the runs a second between 10 and 90 % of the rows."""
        for machine in self.made:
            self._worker(machine)
        seen = self._until_idle()
        begun = seen[0][1]
        steady = [one for one in seen if begun * 0.1 <= one[1] <= begun * 0.9]
        if len(steady) < 2:
            return 0.0
        (since, before), (until, after) = steady[0], steady[-1]
        return (before - after) / (until - since)

    def _load_with_spark(self) -> float:
        """Load with an executor on each machine, and return the rows a second of the load itself."""
        spark = self._home_of_spark() / "bin" / "spark-class"
        host = {"SPARK_LOCAL_IP": self.first.address, "PYSPARK_PYTHON": sys.executable}
        master = f"spark://{self.first.address}:{SPARK_PORT}"
        package = "org.apache.spark.deploy"
        self.first.start(
            spark, f"{package}.master.Master", "--host", self.first.address, "--port", str(SPARK_PORT), **host
        )
        for machine in self.made:
            machine.start(
                spark, f"{package}.worker.Worker", master, "--host", machine.address,
                "--cores", "1", "--memory", "1g",
                **{**host, "SPARK_LOCAL_IP": machine.address},
            )  # fmt: skip
        said = self._percolator(
            "load", self._lines(2), "--table", "documents", "--key", "id", "--chain", "words",
            "--master", master, "--json",
            SPARK_LOCAL_IP=self.first.address,
        )  # fmt: skip
        report = json.loads(said)
        self._until_idle()
        return float(report["new"] / report["load_seconds"])

    def _check(self, parts: int) -> None:
        """Each row was processed, and once."""
        found = json.loads(self._library("print_counts"))
        if found != {"rows": self.rows * parts, "words": self.rows * parts * 3, "most_runs": 1}:
            raise Failed(f"the counts are wrong: {found} of {self.rows * parts} rows")

    def _project(self) -> None:
        package = self.folder / "words"
        package.mkdir()
        (package / "chain.yaml").write_text(CHAIN)
        (package / "count.yaml").write_text(OBSERVER)
        (package / "steps.py").write_text(STEPS)

    def _lines(self, part: int) -> Path:
        """Write a part of the rows as JSON lines, in several files, so that Spark's executors share them."""
        folder = self.folder / f"part-{part}"
        folder.mkdir()
        size = -(-self.rows // 8)
        for file, start in enumerate(range(0, self.rows, size)):
            lines = (
                json.dumps({"id": f"{part}-{number:07}", "text": f"row number {number}"}) + "\n"
                for number in range(start, min(start + size, self.rows))
            )
            (folder / f"{file}.jsonl").write_text("".join(lines))
        return folder

    def _server(self, machine: Machine, port: int, *settings: str) -> None:
        data = self.folder / f"{machine.name}-{port}"
        data.mkdir()
        machine.start(
            "redis-server", "--port", str(port), "--bind", machine.address, "--dir", data,
            "--protected-mode", "no", "--appendonly", "yes", "--save", "", *settings,
        )  # fmt: skip
        ping = ("redis-cli", "-h", machine.address, "-p", str(port), "PING")
        self._await(f"the server of {machine.name}", lambda: "PONG" in self.first.run(*ping))

    def _worker(self, machine: Machine) -> subprocess.Popen[str]:
        return machine.start(BIN / "percolator", "worker", "words", PERCOLATOR_URL=self.url)

    def _percolator(self, *arguments: str | Path, **variables: str) -> str:
        variables = {"PERCOLATOR_URL": self.url, "PERCOLATOR_NAMESPACE": "words", **variables}
        return self.first.run(
            "env", *(f"{k}={v}" for k, v in variables.items()), BIN / "percolator", *arguments
        )

    def _until_idle(self) -> list[tuple[float, int]]:
        """Wait until no cell waits for the observer; return the time and the waiting cells at each look."""
        return [
            (float(at), int(waiting))
            for at, waiting in (line.split() for line in self._library("print_backlog").splitlines())
        ]

    def _library(self, function: str) -> str:
        """Call a function of this file on the first machine's network, outside its control group."""
        command = ["ip", "netns", "exec", self.first.name, sys.executable, __file__, "--inside", function]
        return _output([*command, self.url], self.folder, function)

    def _await(self, what: str, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            with suppress(Failed):  # a server that starts does not answer yet
                if reached():
                    return
            for machine in self.made:
                machine.expect_alive()
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {PATIENCE:.0f} s")
            time.sleep(0.2)

    def _home_of_spark(self) -> Path:
        import pyspark

        return Path(pyspark.__file__).parent


def print_backlog(url: str) -> None:
    """Print how many cells wait for the observer, four times a second, until none waits."""
    from percolator_core import Chain, connect
    from percolator_core.admin.status import backlog

    chain = Chain.load("words", import_functions=False)
    with connect(url, "words") as db:
        while True:
            waiting = sum(backlog(db, chain).values())
            print(time.monotonic(), waiting, flush=True)
            if not waiting:
                return
            time.sleep(0.25)


def print_counts(url: str) -> None:
    """Print how many rows were processed, their words, and the most runs of a row."""
    from percolator_core import connect

    with connect(url, "words") as db:
        found = [(int(cells["words"]), int(cells["runs"])) for _, cells in db.snapshot().scan("counts")]
    runs = max((runs for _, runs in found), default=0)
    print(json.dumps({"rows": len(found), "words": sum(words for words, _ in found), "most_runs": runs}))


def main() -> int:
    """Measure each number of machines so many times, interleaved, and print medians."""
    if sys.argv[1:2] == ["--inside"]:
        sys.path[:0] = [str(ROOT)]
        {"print_backlog": print_backlog, "print_counts": print_counts}[sys.argv[2]](sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--share", type=float, default=0.4, help="of a processor, for each machine")
    parser.add_argument("--rows", type=int, default=20_000, help="of each of the three loads")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: list[Figures] = []
    try:
        for _ in range(given.rounds):
            for count in given.machines:
                with tempfile.TemporaryDirectory(prefix="percolator-scale-") as name:
                    folder = Path(name)
                    with machines(count, given.share, folder) as made:
                        one = Trial(made, folder, given.rows, spark=not given.no_spark).run()
                found.append(one)
                print(
                    f"{count} machines: {one.runs:,.0f} runs/s, {one.loaded:,.0f} rows/s by Spark",
                    file=sys.stderr,
                )
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print_figures(found, as_json=given.json)
    return 0


def _print_figures(found: list[Figures], *, as_json: bool) -> None:
    medians: list[dict[str, Any]] = [
        {
            "machines": count,
            "runs": statistics.median(one.runs for one in found if one.machines == count),
            "loaded": statistics.median(one.loaded for one in found if one.machines == count),
        }
        for count in dict.fromkeys(one.machines for one in found)
    ]
    if as_json:
        print(json.dumps(medians))
        return
    for one in medians:
        ratio = one["runs"] / medians[0]["runs"] if medians[0]["runs"] else 0.0
        print(f"{one['machines']} machines: {one['runs']:,.0f} runs/s, {ratio:.2f} times the first")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces and processes are removed
    if missing := [name for name in ("ip", "redis-server", "redis-cli") if shutil.which(name) is None]:
        sys.exit(f"error: {', '.join(missing)} is not installed")
    sys.exit(main())
