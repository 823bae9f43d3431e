"""``pixalign serve``: live pre-labels for an annotation tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pixalign.cli import common
from pixalign.cli.common import one_of, option
from pixalign.config import PRESETS, AlignConfig
from pixalign.methods import method_of

_PORT = 9090  # where Label Studio's own examples listen


def serve(
    label_studio: Annotated[
        bool, option("Speak Label Studio's protocol.", "--label-studio")
    ] = False,
    model: common.Model = None,
    root: Annotated[
        Path | None,
        option(
            "Folder of the pictures, Label Studio's LOCAL_FILES_DOCUMENT_ROOT.",
            show_default="none: pictures cannot be read",
        ),
    ] = None,
    preset: Annotated[
        str, option("Settings to start from; others are slower.", **one_of(PRESETS))
    ] = "fast",
    method: common.Method = None,
    absent: Annotated[
        Literal["keep", "drop"], option("Keep or drop classes that are probably absent.")
    ] = "drop",
    instances: Annotated[
        Literal["on", "off"], option("Whether separate parts of a class are separate objects.")
    ] = "on",
    min_area: Annotated[int, option("Leave out objects of fewer pixels.", min=0)] = 64,
    host: Annotated[str, option("Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        option("Port.", min=0, max=65535, show_default=f"{_PORT}, or the next that is free"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PIXALIGN_TOKEN",
            help="What a caller must know, as the password of Label Studio's basic "
            "authentication; needed beyond loopback.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        option("Another name of this machine, such as host.docker.internal."),
    ] = None,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    memory: common.Memory = "normal",
) -> None:
    """Answer an annotation tool with masks for the open task, until Ctrl-C."""
    from pixalign.backbones.locations import model_name
    from pixalign.serving.guard import check_binding
    from pixalign.serving.run import address, bound, check_serving
    from pixalign.serving.run import serve as serve_app

    if not label_studio:
        raise ValueError("serve: say for which tool; allowed: --label-studio")
    check_serving()
    check_binding(host, token)
    if root is not None and not root.is_dir():
        raise NotADirectoryError(f"--root {str(root)!r} is no folder")
    config = AlignConfig.preset(preset, absent=absent)
    kind = method_of(config, method)
    config = kind.configured(config)
    from pixalign.labelling.backend import Backend, create_app

    loading: dict[str, Any] = {"batch_size": batch_size, "memory": memory, "progress": False}
    backend = Backend(
        lambda: common.load_model(model, device, dtype, **loading),
        version=f"pixalign {model_name(model)} {kind.name}",
        root=root,
        config=config,
        instances=instances == "on",
        min_area=min_area,
    )
    app = create_app(backend, host=host, token=token, names=name or ())
    with bound(host, port, _PORT) as listening:
        print(f"Label Studio's backend: {address(listening, host)}", flush=True)
        if root is None:
            print("warning: without --root no picture can be read", file=sys.stderr)
        serve_app(app, listening)
