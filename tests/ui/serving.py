"""A server of the pages in a thread, as `percolator ui` starts one in its process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from percolator_core.store.url import StoreUrl
from percolator_core.ui.live import Streams
from percolator_core.ui.local import LocalChain, make_local_app
from percolator_core.ui.serving import PagesServer, listen
from tests.servers.plain import until
from tests.ui.conftest import TOKEN, Pages


@dataclass
class Served:
    """The server's address, its streams, and a way to stop it."""

    url: str
    server: PagesServer
    streams: Streams
    thread: threading.Thread

    def page(self, path: str = "") -> str:
        """Return the URL of a page, with the token."""
        return f"{self.url}{path}{'&' if '?' in path else '?'}token={TOKEN}"

    def stop(self) -> None:
        self.server.stop()
        self.thread.join()


@contextmanager
def served(pages: Pages) -> Iterator[Served]:
    """Serve a chain's pages on a free port until the end of the block."""
    chain = LocalChain(pages.name, pages.folder, StoreUrl(pages.url), pages.name)
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        app = make_local_app([chain], TOKEN, port)
        server = PagesServer(app, app.state.streams.close)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        made = Served(f"http://127.0.0.1:{port}/", server, app.state.streams, thread)
        try:
            yield made
        finally:
            made.stop()
