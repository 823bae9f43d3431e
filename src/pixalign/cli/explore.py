"""``pixalign explore``: the page on which a person sees where a model puts each word."""

from __future__ import annotations

from typing import Annotated

import typer

from pixalign.cli import common
from pixalign.cli.common import option

PORT = 8732  # the usual one; if it is taken, the next


def explore(
    model: common.Model = None,
    host: Annotated[str, option("Address to listen on; other machines need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int | None,
        option("Port; 0 takes any.", show_default=f"{PORT} or the next", min=0, max=65535),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PIXALIGN_TOKEN",
            help="Secret that a browser must send; needed for other machines.",
        ),
    ] = None,
    demo: Annotated[bool, option("Start with a scene of the lab.", "--demo")] = False,
    browser: Annotated[bool, option("Open a browser.", "--browser/--no-browser")] = True,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
) -> None:
    """Open a page: heatmaps, masks, words by pixel, generation and editing, on this machine."""
    from pixalign.serving.guard import check_binding
    from pixalign.serving.run import address, bound, check_serving, serve

    # Whatever is wrong is said before a model is loaded.
    check_serving()
    check_binding(host, token)
    with bound(host, port, PORT) as listening:
        from pixalign.explorer.app import create_app

        loaded = common.load_model(model, device, dtype, batch_size, progress=False)
        app = create_app(loaded, host=host, token=token, demo=demo)
        where = address(listening, host, token)
        typer.echo(f"open {where}   (Ctrl-C ends)")
        serve(app, listening, where if browser else None)
