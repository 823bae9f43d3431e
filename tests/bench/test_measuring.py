"""What an image's rows cost, in seconds and memory, where its noise comes from, what goes wrong."""

import dataclasses
import types
import weakref

import numpy as np
import pytest
import torch

from bench_folder import dataset_of
from pixalign import methods as baselines
from pixalign.bench import clock, measuring, runner
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import IGNORE
from pixalign.bench.subject import Subject, image_seed
from pixalign.methods import Daam, DiffSeg

METHODS = """
  - {name: DAAM, method: daam}
  - {name: DAAM + ELB, method: daam, set: {calibrate: elbo, elbo_steps: 3}}
"""


def subjects_of(dataset, seed=7, of=None):
    chosen = range(len(dataset)) if of is None else of
    return [Subject(dataset[i], i, dataset.classes, seed) for i in chosen]


# ---- seconds ----


@pytest.fixture
def work(model, monkeypatch):
    """A clock that stands still but for passes (1 each), encoding (100) and heatmaps (900)."""
    spent = types.SimpleNamespace(total=0)
    backbone, heatmaps_under = model.backbone, measuring.heatmaps_under
    predict, encode = backbone.predict, backbone.encode_image

    def passes(z, *rest, **options):
        spent.total += len(z)
        return predict(z, *rest, **options)

    def encoding(pixels):
        spent.total += 100
        return encode(pixels)

    def heatmaps(*arguments):
        spent.total += 900
        return heatmaps_under(*arguments)

    monkeypatch.setattr(backbone, "predict", passes)
    monkeypatch.setattr(backbone, "encode_image", encoding)
    monkeypatch.setattr(measuring, "heatmaps_under", heatmaps)
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(perf_counter=lambda: spent.total))
    return spent


def test_a_row_is_charged_what_it_uses(model, work, spec_of, tmp_path):
    spec = spec_of(METHODS, before="strong")
    (subject,) = subjects_of(dataset_of(tmp_path, 2), of=[1])
    assert len(subject.labels) == 1
    _, spent = Bench(spec.rows, model).measure([subject])
    assert spent == pytest.approx(
        {
            "plain": 100 + 2 + 300,  # three rows have their heatmaps made together
            "default": 100 + 2 + 3 + 300,
            "five": 100 + 2 + 5 + 300,
            "DAAM": 100 + 20,
            "DAAM + ELB": 100 + 20 + 3,
        }
    )
    # DAAM's ELBO has another noise: the model's collecting, by which it is drawn, is longer.
    assert work.total == 100 + 2 + (3 + 5 + 3) + 900 + 20 + 20


def test_other_collecting_is_not_charged(model, work, spec_of, tmp_path):
    other = "  - {name: longer, method: attention, set: {collect_steps: 7}}\n"
    spec = spec_of(other, before="five")
    (subject,) = subjects_of(dataset_of(tmp_path, 2), of=[1])
    _, spent = Bench(spec.rows, model).measure([subject])
    assert spent == {"plain": 552, "default": 555, "longer": 100 + 7 + 900}


def test_other_texts_are_not_charged(model, work, spec_of, tmp_path):
    """Rows share passes, and each pays for those under texts that it asks for."""
    few = "set: {elbo_steps: 3, collect_steps: 2, edges: none}"
    spec = spec_of(
        f"""
  - {{name: dense, method: dense, {few}}}
  - {{name: likelihood, method: likelihood, {few}}}
  - {{name: own noise, method: dense, evidence: own-noise, {few}}}
""",
        before="five",
    )
    (subject,) = subjects_of(dataset_of(tmp_path, 3), of=[2])
    assert len(subject.labels) == 2
    _, spent = Bench(spec.rows, model).measure([subject])
    # Leaving out one of two classes leaves the other's text.
    assert spent == pytest.approx(
        {
            "plain": 100 + 2 + 450,  # the layers' weights are not those of dense
            "default": 100 + 2 + 2 * 3 + 450,
            "dense": 100 + 2 + 3 * 3 + 900,  # evidence weighs the layers, and each row has its own
            "likelihood": 100 + 3 * 3,
            "own noise": 100 + 2 + 3 * 3 + 900 + 2 * 2 * 3,
        }
    )


def test_a_gpu_is_waited_for(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.append(device.type))
    for kind, expected in (("cpu", []), ("cuda", ["cuda", "cuda"])):
        with clock.Clock(torch.device(kind)).charged({"a": 1.0}):
            pass
        assert seen == expected


# ---- memory ----


def test_attention_is_let_go_before_more_is_read(model, spec_of, tmp_path, monkeypatch):
    """Of one setting and of as many images as the budget holds; the results stay the same."""
    spec = spec_of(before=None)
    bench, dataset = Bench(spec.rows, model), dataset_of(tmp_path, 8)
    expected, _ = bench.measure(subjects_of(dataset))
    real, held, sizes = measuring.attention_maps, [], []

    def watched(backbone, latents, *rest):
        assert not [one for one in held if one() is not None]
        found = real(backbone, latents, *rest)
        held.extend(weakref.ref(maps) for maps in found)
        sizes.append(len(latents))
        return found

    monkeypatch.setattr(measuring, "attention_maps", watched)
    monkeypatch.setattr(measuring, "images_at_once", lambda *arguments: 2)
    rows, _ = bench.measure(subjects_of(dataset))
    assert set(sizes) == {1, 2} or set(sizes) == {2}
    collected = {row.collecting for row in bench.rows} - {""}
    assert sum(sizes) == 6 * len(collected)  # two of the images have no classes
    for own, theirs in zip(rows, expected, strict=True):
        for name, (tally,) in own.tallies.items():
            assert (tally.claimed - theirs.tallies[name][0].claimed).abs().max() <= 2, name
        assert (own.activation or ()) == pytest.approx(theirs.activation or (), rel=1e-5)


# ---- seeds ----


def test_seeds_come_of_the_seed_and_the_key():
    assert image_seed(0, "scene-000001") == 7796648250078228612  # pinned: results depend on it
    found = {image_seed(seed, key) for seed in range(20) for key in ("a", "b", "1/a")}
    assert len(found) == 60
    assert all(0 <= seed < 2**63 for seed in found)


def test_noise_does_not_depend_on_the_place(model, spec_of, tmp_path):
    spec, dataset = spec_of(before="strong"), dataset_of(tmp_path, 4)
    bench = Bench(spec.rows, model)
    turned = dataclasses.replace(dataset, keys=dataset.keys[::-1])
    rows, again = (bench.measure(subjects_of(one))[0] for one in (dataset, turned))
    by_key = {row.key: row for row in again}
    for row in rows:
        assert (by_key[row.key].elbo or ()) == pytest.approx(row.elbo or (), rel=1e-5)


# ---- what goes wrong ----


def test_nan_is_told_with_the_image(model, spec_of, tmp_path, monkeypatch):
    spec = spec_of("  - {name: plain, method: daam}\n  - {name: ours}\n")
    bench, dataset = Bench(spec.rows, model), dataset_of(tmp_path, 3)
    remedy = "load the model with dtype='float32' or 'bfloat16'"
    text = f"hold NaN or infinity in torch.float64; {remedy}"
    maps, errors, find = measuring.attention_maps, measuring.text_errors, Daam.find

    def bad_maps(*arguments):
        found = maps(*arguments)
        found[-1].cross[0][0, 0, 0] = torch.nan
        return found

    def bad_errors(*arguments, **options):
        found = errors(*arguments, **options)
        return [dataclasses.replace(one, losses=one.losses * torch.nan) for one in found]

    def bad_find(*arguments):
        found = find(*arguments)
        return dataclasses.replace(found, cross=found.cross * torch.nan)

    for where, name, bad, said in (
        (measuring, "attention_maps", bad_maps, "'002': attention maps"),
        (measuring, "text_errors", bad_errors, "'001': losses"),
        (Daam, "find", bad_find, "'001': attention maps"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, bad)
            with pytest.raises(FloatingPointError, match=f"^image {said} {text}"):
                bench.measure(subjects_of(dataset))


def test_options_are_checked_before_the_first_image(model, spec_of, tmp_path, monkeypatch):
    spec = spec_of("  - {name: plain, method: diffseg, options: {anchors: 1}}\n")
    with pytest.raises(ValueError, match="anchors, iterations and threshold are 1"):
        runner.run(spec, dataset_of(tmp_path, 1), model, tmp_path / "out", show=False)
    assert not (tmp_path / "out").exists()


def test_a_method_is_built_once_with_its_options(model, spec_of, tmp_path, monkeypatch):
    spec = spec_of("  - {name: plain, method: diffseg, options: {anchors: 3}}\n")
    built = []

    class Counted(DiffSeg):
        def __init__(self, *arguments, **options):
            built.append(options)
            super().__init__(*arguments, **options)

    monkeypatch.setitem(baselines.METHODS, "diffseg", Counted)
    runner.run(spec, dataset_of(tmp_path, 4), model, tmp_path / "out", show=False)
    assert built == [{"anchors": 3}]


def test_ignored_pixels_are_unknown_to_supervised_methods(tmp_path):
    (subject,) = subjects_of(dataset_of(tmp_path, 4), of=[3])
    truth, masks = subject.sample.truth, subject.target_masks
    assert masks.shape == (3, *truth.shape)
    assert (truth == IGNORE).any()
    for label, mask in zip(subject.labels, masks, strict=True):
        assert np.array_equal(mask == 1, truth == label + 1)
        assert np.array_equal(mask == IGNORE, truth == IGNORE)
        assert set(np.unique(mask)) == {0, 1, IGNORE}
