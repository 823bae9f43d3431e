"""The ``pixalign`` command. Thin: it parses, calls, prints, and turns bad input into one line."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """Where a command stands, a module below this one, and what the list says of it."""

    module: str
    about: str


COMMANDS = {
    "segment": Entry("segment", "Find classes in pictures: mask, heatmaps, overlay, result.json."),
    "label": Entry("label", "Label a folder of pictures for annotation tools; resumable."),
    "generate": Entry("generate", "Draw a prompt so that every entity it names appears."),
    "edit": Entry("edit", "Change what the words of a picture's prompt say, and only there."),
    "explore": Entry("explore", "Open a page that shows where a model puts each word."),
    "serve": Entry("serve", "Answer an annotation tool with masks, live."),
    "audit": Entry("audit", "Report what a model knows: on masks, on pictures or on prompts."),
    "fit": Entry("fit", "Choose a model's thresholds and strength on your own masks."),
    "demo": Entry("scenes", "Show the method at work, offline."),
    "scenes": Entry("scenes", "Draw scenes with exact masks, captions and boxes."),
    "classes": Entry("models", "List the classes of a dataset or of the scenes."),
    "models": Entry("models", "List families of models, the lab's models and cached ones."),
    "doctor": Entry("models", "Say which devices, number types, versions and models can be used."),
    "bench": Entry("bench", "Datasets, metrics and the tables of the paper."),
}


class _Commands(TyperGroup):
    """The commands; one is imported when it is called, as it brings torch along."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What stands in the list."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.about)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else loaded_command(name), rest


def loaded_command(name: str) -> Any:
    """A command or a group of them, with its options."""
    module = import_module(f"pixalign.cli.{COMMANDS[name].module}")
    found = getattr(module, name)
    if not isinstance(found, typer.Typer):
        found, function = typer.Typer(add_completion=False), found
        found.command(name)(function)
    return typer.main.get_command(found)


app = typer.Typer(
    help="Which pixels belong to which words, according to a text-to-image model.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# What the command line itself refuses; typer carries this class without naming it.
UsageError: Any = typer.BadParameter.__mro__[1]
STOPPED = 130


def _print_version(asked: bool) -> None:
    if asked:
        import pixalign

        print(f"pixalign {pixalign.__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", help="Print the version.", callback=_print_version)


@app.callback()
def _options(version: Annotated[bool, _VERSION] = False) -> None:
    pass


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
    except (KeyboardInterrupt, typer.Abort) as error:
        stop(str(error) or "stopped")
    if code == STOPPED:  # typer's own answer to Ctrl-C
        stop("stopped")
    sys.exit(code)


def stop(message: str) -> NoReturn:
    """End as after Ctrl-C, with one line."""
    print(message, file=sys.stderr)
    sys.exit(STOPPED)


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
