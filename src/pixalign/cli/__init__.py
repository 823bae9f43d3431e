"""The ``pixalign`` command. Thin: it parses, calls, prints, and turns bad input into one line."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from pixalign.cli import bench, edit, generate, models, scenes, segment
from pixalign.cli.common import option

app = typer.Typer(
    help="Which pixels belong to which words, according to a text-to-image model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    segment.segment,
    generate.generate,
    edit.edit,
    scenes.demo,
    scenes.scenes,
    models.classes,
    models.models,
    models.doctor,
):
    app.command()(command)
app.add_typer(bench.bench, name="bench")

# What the command line itself refuses; typer carries this class without naming it.
UsageError: Any = typer.BadParameter.__mro__[1]
STOPPED = 130


def _print_version(asked: bool) -> None:
    if asked:
        import pixalign

        print(f"pixalign {pixalign.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, option("Print the version.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run ``pixalign``."""
    run_command(app, "pixalign")


def run_command(command: typer.Typer, name: str) -> None:
    """Run a command. Bad input ends with exit code 2 and one line on stderr."""
    _quiet_libraries()
    try:
        code = command(standalone_mode=False)
    except UsageError as error:
        _fail(error.format_message(), error, name)
    except (ValueError, OSError, ArithmeticError) as error:
        _fail(str(error), error, name)
    except RuntimeError as error:
        from pixalign.core.batching import out_of_memory

        if not out_of_memory(error):
            raise
        _fail("out of memory with one pass at once; use a smaller model or device", error, name)
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    if code == STOPPED:  # typer's own answer to Ctrl-C
        print("stopped", file=sys.stderr)
    sys.exit(code)


def _fail(message: str, error: Exception, name: str) -> NoReturn:
    if os.environ.get("PIXALIGN_TRACEBACK"):
        raise error
    if message:  # without a command, help has been printed and nothing is left to say
        print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _quiet_libraries() -> None:
    """Libraries' chatter is not for the user of a command."""
    for library in ("TRANSFORMERS", "DIFFUSERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module="huggingface_hub")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
