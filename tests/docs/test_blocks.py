"""Every code block of README and the guides does what it says; the others are checked."""

import json
import re
import tomllib

import matplotlib
import pytest
import yaml

from documents import NOT_RUN, ROOT, SHELLS, blocks, check_options, commands, loader, ours, tokens
from pixalign.backbones.load import FAMILIES
from pixalign.bench.datasets import DATASETS
from pixalign.labelling.formats import FORMATS
from pixalign.methods import METHODS
from pixalign.scenes import demo
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes
from pixalign.scenes.write import write_scenes

DOCS = ROOT / "docs"
STUDIES = (
    "lab", "method", "benchmark", "generation", "synthetic", "editing", "audit", "speed",
    "baselines",
)  # fmt: skip
PAGES = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("**/*.md")]
    if not {"_build", "gallery"} & set(page.parts)
)
GUIDES = [page for page in PAGES if page.parent != DOCS or page.stem not in STUDIES]
WITH_CODE = [page for page in GUIDES if any(not block.not_run for block in blocks(page))]
# What belongs to a person's own machine: looked at, not done.
PREPARING = {"git", "make", "pip", "export", "cd", "mkdir", "cp"}
SERVING = {"explore", "serve"}  # these run until they are stopped
# What a reader looks at; every other block is run or checked.
SHOWN = {"text", "bibtex", "{toctree}", "{include}", "{eval-rst}", "{pixalign-commands}"}
RUN = {"python", "json", "yaml", *SHELLS}


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pictures that the pages speak of."""
    folder = tmp_path_factory.mktemp("pictures")
    write_scenes("test", 2, folder / "scenes")
    photos = folder / "photos"
    photos.mkdir()
    for index, scene in enumerate(labelled_scenes(sample_scenes("test", 0, 3), 96)):
        for place in (folder, photos):
            scene.image.save(place / f"{('street', 'one', 'two')[index]}.png")
    return folder


@pytest.fixture
def desk(files, tmp_path, monkeypatch):
    """A folder with these pictures, where models are small and steps are few."""
    for thing in files.iterdir():
        (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pixalign.model.load", loader(quick=True))
    monkeypatch.setitem(demo.demo.__kwdefaults__, "scenes", 1)
    matplotlib.use("Agg")
    kept = [(registry, dict(registry)) for registry in (METHODS, DATASETS, FAMILIES, FORMATS)]
    yield tmp_path
    for registry, entries in kept:  # pages add to them
        registry.clear()
        registry.update(entries)


def run_page(page, shell):
    """All blocks of a page, in order, as a reader would go through them."""
    known = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{name_of(page)}, line {block.line}"
        if block.not_run:
            continue
        if block.file:
            with open(block.file, "w", encoding="utf-8") as file:
                file.write(block.text)
        if block.language == "python":
            exec(compile(block.text, where, "exec"), known)
        elif block.language in SHELLS:
            for words in commands(block.text):
                run_words(words, shell, where)
        elif block.language in ("json", "yaml"):
            {"json": json.loads, "yaml": yaml.safe_load}[block.language](block.text)


def run_words(words, shell, where):
    call = ours(words)
    if call is None:
        assert words[0] in PREPARING or script_of(words).is_file(), f"{where}: {words}"
        return
    name, rest = call
    check_options(name, rest)
    if name == "pixalign" and rest[0] not in SERVING:
        code, _, err = shell(*rest)
        assert code == 0, f"{where}: {words}: {err}"


def script_of(words):
    """The script that a command runs."""
    return ROOT / next((word for word in words if word.endswith(".py")), "none")


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_blocks_of_a_page_run(page, desk, shell):
    run_page(page, shell)


@pytest.mark.slow
def test_the_first_steps_print_what_they_say(tmp_path, monkeypatch, shell):
    """The words to the letter, the numbers to a tenth of a percent."""
    monkeypatch.chdir(tmp_path)
    page = blocks(DOCS / "start" / "first-steps.md")
    said = next(block.text for block in page if block.language == "text")
    asked = next(block.text for block in page if "pixalign scenes" in block.text)
    printed = [shell(*words[1:])[1] for words in commands(asked)][-1]
    number = re.compile(r"\d+\.\d+")
    assert number.sub("", printed).split() == number.sub("", said).split()
    expected = [float(value) for value in number.findall(said)]
    assert [float(v) for v in number.findall(printed)] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_that_are_not_run_are_sound(page):
    """Python compiles, commands and their options exist, and there is a reason."""
    for block in blocks(page):
        if block.not_run or page not in GUIDES:
            if block.language == "python":
                compile(block.text, name_of(page), "exec")
            for words in commands(block.text) if block.language in SHELLS else ():
                call = ours(words)
                if call:
                    check_options(*call)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes(page):
    """All are fenced, in a language that is run or shown; shown ones hold no code of ours."""
    assert not [token for token in tokens(page) if token.type == "code_block"] or page not in GUIDES
    for block in blocks(page):
        kind = block.language.split(" ")[0]
        assert kind in RUN | SHOWN, f"{name_of(page)}, line {block.line}: {block.language!r}"
        if kind == "text":
            assert "import pixalign" not in block.text
            assert not re.search(r"^(?:pixalign (?!.*\[OPTIONS\])|pip |make )", block.text, re.M)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_mark_stands_before_a_block(page):
    """A mark that belongs to nothing would hide nothing."""
    marks = [t for t in tokens(page) if t.type == "html_block" and NOT_RUN.search(t.content)]
    assert len(marks) == sum(block.not_run is not None for block in blocks(page))


def test_what_a_machine_is_prepared_with_is_there():
    """Targets of make, and extras."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    shells = [block for page in PAGES for block in blocks(page) if block.language in SHELLS]
    called = [words for block in shells for words in commands(block.text)]
    targets = {words[1] for words in called if words[0] == "make"}
    assert targets >= {"setup", "demo", "test", "lint", "wheel"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for page in PAGES:
        for names in re.findall(r"(?:pixalign|\.whl)\[([a-z,]+)\]", page.read_text()):
            assert set(names.split(",")) <= set(extras), names
