"""A family of one's own, as docs/extend/family.md writes it; and the table of families."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import pixalign as pa
import zoo
from helpers import inputs
from pixalign.backbones import FAMILIES, wrap

DOCS = Path(__file__).parents[2] / "docs"
QUICK = pa.AlignConfig(elbo_steps=2, collect_steps=1)


@pytest.fixture
def own():
    """The class that the page shows."""
    page = (DOCS / "extend" / "family.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n# my_qwen_image\.py\n(.+?)```", page, re.DOTALL)[1]
    lines = [
        line for line in block.splitlines() if line and not line.startswith(("from", "import"))
    ]
    assert len(lines) <= 40
    known = {"__name__": "my_qwen_image"}
    exec(compile(block, "docs/extend/family.md", "exec"), known)
    return known["MyQwenImage"]


@pytest.fixture
def registry():
    """The families, as they were in the end, in their order."""
    kept = dict(FAMILIES)
    yield FAMILIES
    FAMILIES.clear()
    FAMILIES.update(kept)


@pytest.mark.parametrize("name", ["my-qwen-image", "qwen-image"])
def test_a_family_may_be_added_or_replaced(own, name, registry, photo):
    pipe = zoo.built("qwen-image")
    theirs, expected = wrap(pipe), pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK)
    del registry["qwen-image"]
    registry[name] = own
    model = pa.load(pipe)
    ours = model.backbone
    assert type(ours) is own
    assert torch.equal(ours.predict(*inputs(ours)), theirs.predict(*inputs(theirs)))
    for text in ("a red dog", "two cat and a dog, a tree"):
        (columns,) = ours.columns(text, [((text.index("dog"), text.index("dog") + 3),)], 60)
        (same,) = theirs.columns(text, [((text.index("dog"), text.index("dog") + 3),)], 60)
        assert columns == same
        assert columns
    found = model.align(photo, ["dog", "cat"], config=QUICK)
    assert np.array_equal(found.heatmaps, expected.heatmaps)
    with model.capture(["dog"]) as maps:
        pipe("a red dog", num_inference_steps=2, height=64, width=64, output_type="latent")
    assert maps["dog"].amax() > 0


def test_the_table_names_every_family():
    page = (DOCS / "reference" / "families.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.*?) ?\| (.*?) ?\|$", page, re.MULTILINE)
    table = {name: (about, told, lab) for name, about, told, lab in rows if name in FAMILIES}
    assert list(table) == list(FAMILIES)
    telling = {wrap(zoo.built(n)).family for n in zoo.cases() if wrap(zoo.built(n)).tells_guidance}
    for name, (about, told, _) in table.items():
        assert about == FAMILIES[name].description
        assert bool(told) == (name in telling), name
