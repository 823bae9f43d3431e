"""What people and disks may hand in, damaged: an error that is documented, or a result, in time.

A slice runs in `make test`; ``PIXALIGN_FUZZ=200 python -m pytest tests/fuzz -sv`` is the whole, and
tells numbers. The seed of an input is its number, so what fails is run again.
"""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzzing import COUNT, DOCUMENTED, fuzz
from mutations import VALUES, changed, damaged, damaged_copy
from PIL import Image

import pixalign as pa
import tiny
import trees
from bench_folder import dataset_of
from helpers import small
from pixalign.alignment.saved import load_alignment
from pixalign.backbones.locations import read_settings
from pixalign.bench import runner
from pixalign.bench.datasets import check, find_datasets, near_misses, open_dataset
from pixalign.bench.datasets.captions import load_counts
from pixalign.bench.datasets.coco import region_pixels
from pixalign.bench.report import render_benchmark, write_report
from pixalign.bench.spec import SPECS, load_spec
from pixalign.bench.store import find_runs
from pixalign.bench.summary import read_result
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.values import Phrase
from pixalign.editing.cache import InversionCache
from pixalign.editing.inversion import Inversion
from pixalign.generation.prompt_sets import read_attend_excite
from pixalign.labelling.classes import read_classes
from pixalign.pictures.reading import read_image, upright_size
from pixalign.text.entities import given_entities, read_non_entities
from pixalign.text.pairing import pair
from pixalign.text.prompts import as_phrases, typed_classes

pytestmark = pytest.mark.fuzz
_TEXTS = (
    "dog", "hot dog", "a red car", "", " ", "é", "日本語", "💥" * 30, "a" * 3000, "\x00", "\ud800",
    "=", "a,b", "dog=", "=dog", "{}", "{0}", "\n", "DOG", "the", "../../x", "<b>", "%s",
    "dog " * 60,
)  # fmt: skip


def said_by(work, *arguments):
    """What is said where the input is refused, else None."""
    try:
        work(*arguments)
    except DOCUMENTED as error:
        return str(error)
    return None


def texts(rng, most=5):
    return [rng.choice(_TEXTS) for _ in range(rng.randrange(most + 1))]


def test_pictures(tmp_path):
    files = []
    for kind, options in (
        ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {}),
        ("BMP", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {}), ("AVIF", {}), ("TGA", {}),
        ("JPEG2000", {}),
    ):  # fmt: skip
        path, exif = tmp_path / f"seed{len(files)}", Image.Exif()
        exif[0x0112] = 6
        picture = tiny.photo(40, 30).convert("P" if kind == "GIF" else "RGB")
        picture.save(path, format=kind, **options, **({"exif": exif} if kind == "JPEG" else {}))
        files.append(path.read_bytes())

    def work(rng):
        path = tmp_path / "picture.png"
        path.write_bytes(damaged(rng, rng.choice(files)))
        for read in (upright_size, read_image):
            said = said_by(read, path)
            assert said is None or "picture.png" in said

    fuzz(work, 10 * COUNT)


def test_arrays_and_modes():
    def work(rng):
        shape = tuple(rng.choice((0, 1, 3, 4, 8, 12)) for _ in range(rng.randrange(5)))
        kinds = ("uint8", "uint16", "int32", "float32", "float64", "bool", "complex64", "object")
        numbers = np.random.default_rng(rng.randrange(99)).normal(0.5, 0.4, shape)
        read_image(numbers.astype(rng.choice(kinds)))

    fuzz(work, 5 * COUNT)


def test_classes():
    def work(rng):
        given = [
            Phrase(text, rng.choice(_TEXTS)) if rng.random() < 0.3 else text for text in texts(rng)
        ]
        given += [rng.choice(VALUES)] if rng.random() < 0.2 else []
        assert len(as_phrases(rng.choice((given, dict.fromkeys(texts(rng), "x"))))) > 0
        typed_classes(texts(rng))

    fuzz(work, 10 * COUNT)


def test_class_files(tmp_path):
    seeds = {
        "classes.txt": b"dog\nhot dog\ncar=a red car\n",
        "classes.csv": b"image,classes\na.jpg,dog;cat\nb.jpg,car\n",
        "classes.json": json.dumps({"a.jpg": ["dog", "cat"], "b.jpg": ["car"]}).encode(),
    }

    def work(rng):
        name = rng.choice(list(seeds))
        path = tmp_path / name
        path.write_bytes(damaged(rng, seeds[name]))
        read_classes(path)
        read_non_entities(path)

    fuzz(work, 5 * COUNT)


def test_prompts():
    backbone = pa.load(small("sd1")).backbone

    def work(rng):
        source, target = (" ".join(texts(rng, 8)) for _ in range(2))
        for prompt in (source, target):
            backbone.check_prompt(prompt)
        given_entities(source, texts(rng))
        pair(backbone, source, target, 77, rng.choice((None, {rng.choice(_TEXTS): 2.0})))

    fuzz(work, 5 * COUNT)


def test_configs():
    usual = AlignConfig().to_dict()

    def work(rng):
        fields = changed(rng, usual)
        config = AlignConfig(**(fields if isinstance(fields, dict) else usual))
        own = changed(rng, {"gamma": 0.5, "threshold": {"dense": 0.3}})
        config.resolved(rng.choice(("sd", "sd3", "")), own if isinstance(own, dict) else None)

    fuzz(lambda rng: _typed(work, rng), 10 * COUNT)


def _typed(work, rng):
    """Python's own error for a keyword that no field has is documented, too."""
    try:
        work(rng)
    except TypeError as error:
        if "keyword" not in str(error):
            raise


def test_settings(tmp_path):
    plain = {"gamma": 0.5, "centred": True, "threshold": {"dense": 0.4}, "cross_weights": {"a": 1}}

    def work(rng):
        path = write_json(tmp_path / "pixalign.json", {})
        path.write_text(json.dumps(changed(rng, plain)), encoding="utf-8")
        if rng.random() < 0.5:
            path.write_bytes(damaged(rng, path.read_bytes()))
        read_settings(path)

    fuzz(work, 5 * COUNT)


def test_specs(tmp_path):
    seeds = [path.read_bytes() for path in sorted(SPECS.glob("*.yaml"))]
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(24)
    )
    seeds += [bomb.encode(), b"[" * 5000, b"a: " + b"{b: " * 3000]

    def work(rng):
        path, content = tmp_path / "spec.yaml", rng.choice(seeds)
        path.write_bytes(content if rng.random() < 0.1 else damaged(rng, content))
        said = said_by(load_spec, path)
        assert said is None or "spec.yaml" in said

    fuzz(work, 2 * COUNT)


@pytest.mark.parametrize("name", ["voc", "coco", "aep", "folder", "ade20k"])
def test_datasets(name, tmp_path):
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    trees.BUILDERS[name](whole)

    def work(rng):
        damaged_copy(rng, whole, copy)
        find_datasets(copy)
        near_misses(copy)
        dataset = open_dataset(name, copy)
        check(dataset, decode=True)
        dataset.digest()

    fuzz(work, COUNT)


def test_outlines(tmp_path):
    plain = [
        {"id": 1, "category_id": 90, "segmentation": trees.box(2, 2, 6, 6)},
        {"id": 2, "category_id": 1, "segmentation": {"size": [12, 16], "counts": [9, 100, 83]}},
        {"id": 3, "category_id": 1, "segmentation": {"size": [12, 16], "counts": "9T3c2"}},
    ]
    path = trees.instances(tmp_path, plain)
    content = json.loads(path.read_text())

    def work(rng):
        size = (rng.choice((1, 12, 300)), rng.choice((1, 16, 300)))
        outline = changed(rng, rng.choice(plain)["segmentation"])
        with suppress(ValueError, KeyError, TypeError, OverflowError):  # `Outlines` names the file
            assert region_pixels(outline, size).shape == size
        path.write_text(json.dumps(changed(rng, content)))
        dataset = open_dataset("coco", tmp_path)
        check(dataset)

    fuzz(work, 3 * COUNT)


def test_captions_and_prompt_sets(tmp_path):
    counts = dict.fromkeys(("dog", "cat", "hot dog"), 3)
    sets = {group: ["a dog and a cat"] * 2 for group in ("animals", "animals_objects", "objects")}

    def work(rng):
        path = tmp_path / "file.json"
        for plain, read in (
            (counts, lambda p: load_counts(p, list(counts))),
            (sets, read_attend_excite),
        ):
            path.write_text(json.dumps(changed(rng, plain)))
            if rng.random() < 0.5:
                path.write_bytes(damaged(rng, path.read_bytes()))
            with suppress(*DOCUMENTED):
                read(path)

    fuzz(work, 3 * COUNT)


def test_results(tmp_path):
    config = pa.AlignConfig(elbo_steps=1, collect_steps=1)
    made = pa.load(small("sd1")).align(tiny.photo(24, 24), ["dog", "cat"], config=config)
    made.save(tmp_path / "whole")

    def work(rng):
        load_alignment(damaged_copy(rng, tmp_path / "whole", tmp_path / "copy"))

    fuzz(work, 2 * COUNT)


def test_inversions(tmp_path):
    cache = InversionCache(tmp_path)
    cache.write("0" * 64, Inversion(torch.randn(1, 4, 8, 8), torch.randn(2, 7, 3)))
    path = tmp_path / f"{'0' * 64}.npz"
    whole = path.read_bytes()
    known = cache.read("0" * 64)

    def work(rng):
        path.write_bytes(damaged(rng, whole))
        again = cache.read("0" * 64)  # None, or what was written
        assert again is None or torch.equal(again.noise, known.noise)

    fuzz(work, 5 * COUNT)


def test_runs(tmp_path):
    (tmp_path / "two.yaml").write_text(
        "version: 1\nlabel: x\ntitle: x\ndatasets: [folder]\nbaseline: a\nrows:\n"
        "  - {name: a, method: attention, set: {collect_steps: 1}}\n"
    )
    model, dataset = pa.load(small("sd1")), dataset_of(tmp_path, 2)
    run = runner.run(load_spec(tmp_path / "two.yaml"), dataset, model, tmp_path / "out", show=False)
    write_report(tmp_path / "out")
    assert run.folder.is_dir()

    def work(rng):
        copy = damaged_copy(rng, tmp_path / "out", tmp_path / "copy")
        for found in find_runs(copy):
            assert found.done() <= {0, 1}
            assert all(image.key for image in found.images())
            read_result(found.folder / "result.json")

    fuzz(work, COUNT)


def test_templates(tmp_path):
    parts = (
        "{{ results }}", "{% for x in results %}", "{% endfor %}", "{{ x.__class__ }}", "{{", "}}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% include '/etc/passwd' %}",
        "{{ tables }}", "{{ nothing }}", "{% raw %}", "text", "{{ warnings.__globals__ }}",
    )  # fmt: skip

    def work(rng):
        path = tmp_path / "page.md.j2"
        path.write_text("".join(rng.choice(parts) for _ in range(rng.randrange(5))))
        said = render_benchmark(tmp_path, path)
        assert "root:" not in said
        assert "subprocess" not in said

    fuzz(work, 3 * COUNT)


def test_models(tmp_path):
    """Each is loaded by the libraries, so there are fewer."""
    whole = tmp_path / "whole"
    tiny.sd1().save_pretrained(whole)

    def work(rng):
        pa.load(damaged_copy(rng, whole, tmp_path / "copy"), device="cpu")

    refused = fuzz(work, max(6, COUNT // 10))
    assert refused > 0
    assert Path(whole / "model_index.json").is_file()
