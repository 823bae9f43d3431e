"""What the documents hold: code blocks, commands, links; and models that answer quickly."""

import dataclasses
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

import typer
from markdown_it import MarkdownIt

import pixalign as pa
from lab.__main__ import lab
from pixalign import model as shell
from pixalign.cli import COMMANDS, loaded_command

ROOT = Path(__file__).parent.parent
SHELLS = ("", "sh", "bash", "console", "shell")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, where it stands, and why it is not run, if so."""

    language: str
    text: str
    line: int
    not_run: str | None

    @property
    def file(self):
        """The file that its first line names: "# NAME.yaml"."""
        named = re.match(r"# (\w[\w-]*\.(?:py|yaml|json))\n", self.text)
        return named and named.group(1)


def tokens(page):
    return _MARKDOWN.parse(page.read_text(encoding="utf-8"))


def blocks(page):
    """All fenced blocks of a page, in order."""
    found, before = [], ""
    for token in tokens(page):
        if token.type == "fence":
            marked = NOT_RUN.search(before)
            why = marked.group(1) if marked else None
            found.append(Block(token.info.strip(), token.content, token.map[0] + 1, why))
        before = token.content if token.type == "html_block" else ""
    return found


def commands(text):
    """The commands of a shell block, as lists of words, without what stands before them."""
    named = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = [Template(w).safe_substitute(named) for w in shlex.split(line, comments=True)]
        while words and (given := re.fullmatch(r"([A-Z_]+)=(\S*)", words[0])):
            named[given.group(1)], words = given.group(2), words[1:]
        for part in " ".join(map(shlex.quote, words)).split(" '&&' ") if words else ():
            yield shlex.split(part)


def ours(words):
    """(command, its words) of a call of ``pixalign`` or ``python -m lab``; else None."""
    if Path(words[0]).name == "pixalign":
        return "pixalign", words[1:]
    if words[0] == "accelerate":
        words = words[words.index("-m") - 1 :]
    if words[1:2] == ["-m"] and words[2] in ("pixalign", "lab"):
        return words[2], words[3:]
    return None


def check_options(name, words):
    """Have the command line parse a call without making it."""
    if name == "pixalign":
        assert words[0].startswith("--") or words[0] in COMMANDS, words
        if words[0].startswith("--"):
            return
        command, words = loaded_command(words[0]), words[1:]
    else:
        command = typer.main.get_command(lab)
    while getattr(command, "commands", None):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(name, list(words))


class QuickModel(pa.Model):
    """A real model that takes few timesteps, so that a page is read in seconds."""

    def resolve(self, config=None, method=None, calibrate=None):
        chosen = super().resolve(config, method, calibrate)
        few = {"elbo_steps": 2, "collect_steps": 1, "elbo_timesteps": None}
        return dataclasses.replace(chosen, **few, collect_timesteps=None)

    def generate(self, prompt, **options):
        return super().generate(prompt, **{**options, "steps": 2})

    def edit(self, image, source, target, **options):
        few = {"steps": 2, "inversion": "ddim"}
        return super().edit(image, source, target, **{**options, **few})


HUB = {
    "stable-diffusion-xl": "lab:sdxl",
    "stable-diffusion-3": "lab:sd3",
    "FLUX": "lab:sd3",
    "stable-diffusion": None,  # the embedded one
}


@cache
def _loaded(name, quick, device):
    model = _LOAD(name, device=device)
    if quick:
        model.__class__ = QuickModel
    return model


_LOAD = shell.load


def loader(quick=True):
    """`pixalign.load` with a lab model in the place of what a hub id names; loaded once."""

    def load(model=None, *, device="auto", settings=None, **options):
        name = model
        if isinstance(model, str) and "/" in model and not Path(model).exists():
            name = next(known for part, known in HUB.items() if part in model)
        if settings is not None:
            return _LOAD(name, device=device, settings=settings)
        return _loaded(name, quick, device)

    return load
