"""`perflab dashboard`: a run as a page for a browser."""

from __future__ import annotations

import functools
import http.server
from pathlib import Path

from perflab import store, workspace
from perflab.errors import PerflabError

DEFAULT_OUT = Path("site")


def build(name: str | None, out: Path | None, results: Path | None, explicit: Path | None) -> None:
    """Write a run's page and print the path of its index.html."""
    from perflab.present import pages

    place = workspace.find(explicit=explicit, results=results)
    print(pages.build(store.find(place.results, name), place, out or DEFAULT_OUT))


def serve(out: Path | None, port: int) -> None:
    """Serve a built folder on this machine alone until Ctrl-C; print its address.

    Fails: PerflabError if nothing was built there or the port cannot be had.
    """
    folder = out or DEFAULT_OUT
    if not (folder / "index.html").is_file():
        raise PerflabError(f"{folder}: nothing is built here; `perflab dashboard build --out {folder}` does it")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise PerflabError(f"port {port} cannot be had ({error.strerror}); choose another with --port") from error
    with server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            # The usual end of a server, not an interrupted measurement.
            return
