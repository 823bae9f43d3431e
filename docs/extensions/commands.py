"""The directive ``pixalign-commands``: every command with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from pixalign.cli import COMMANDS, loaded_command


def described(path: str, command: Any) -> Iterator[str]:
    """Markdown of a command, or of a group's commands."""
    context = typer.Context(command, info_name=path)
    inner = getattr(command, "commands", None)
    if inner:
        yield from (f"## {path}", "", command.help or "", "")
        for name in command.list_commands(context):
            yield from described(f"{path} {name}", inner[name])
        return
    yield from (f"{'##' if path.count(' ') < 2 else '###'} {path}", "", command.help or "", "")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{path} {usage}", "```", "")
    yield from options(command, context)


def options(command: Any, context: Any) -> Iterator[str]:
    """An entry of a definition list for each argument and option, as ``--help`` says it."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            name, about = (text.strip() for text in record)
            yield from (f"`{name}`", f": {about}", "")


class Commands(SphinxDirective):
    """All commands, in the order in which ``pixalign --help`` lists them."""

    def run(self) -> list[nodes.Node]:
        """The commands as parsed Markdown."""
        lines = [
            line
            for name in COMMANDS
            for line in described(f"pixalign {name}", loaded_command(name))
        ]
        text = [part for line in lines for part in line.split("\n")]
        self.content = StringList(text, "pixalign.cli")
        return self.parse_content_to_nodes(allow_section_headings=True)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("pixalign-commands", Commands)
    return {"parallel_read_safe": True}
