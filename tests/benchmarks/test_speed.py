"""The speed benchmark measures what it says, and its reference computes the same."""

import dataclasses
import io
import json
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import pixalign as pa
import tiny

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import architectures
import sequential
import speed

ROW = {
    "name", "seconds", "seconds_per_forward", "peak_gib", "forwards", "flops", "floor_seconds",
    "floor_share", "times_faster", "first_seconds", "batch_size", "difference", "extrapolated",
}  # fmt: skip
RECORD = {
    "arch", "device", "threads", "torch", "diffusers", "dtype", "classes", "latents", "parameters",
    "resident_gib", "flops_per_forward", "flops_before_text",
    "matrix_flops_per_second", "repeats", "rows",
}  # fmt: skip


def asked(*arguments):
    """The benchmark's JSON, which is all that it may print, and its exit status."""
    with redirect_stdout(io.StringIO()) as printed:
        status = speed.main([*arguments, "--device", "cpu", "--repeats", "1", "--json"])
    return json.loads(printed.getvalue()), status


@pytest.fixture
def small(pipeline, monkeypatch):
    """The quickest of the tiny pipelines, with few positions, as a model to be measured."""
    monkeypatch.setattr(speed, "_free", lambda device: None)  # of memory there is enough
    backbone = pa.load(pipeline("sd3")).backbone
    latents = architectures.smooth_latents(backbone)[..., :8, :8]
    return architectures.Model(backbone, latents, architectures.NOUNS)


def test_rows_and_fields():
    record, status = asked("--arch", "tiny", "--classes", "2")
    assert status == 0
    assert set(record) == RECORD
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["sequential", "elbo", "dense", "fast"]
    for row in rows.values():
        assert set(row) - {"notes"} == ROW
        assert set(row["seconds"]) == {"total", "elbo", "collect", "heatmaps"}
        assert all(seconds > 0 for seconds in row["seconds"].values())
        assert row["flops"] == record["flops_per_forward"] * row["forwards"]["total"]
        floor = row["flops"] / record["matrix_flops_per_second"]
        assert row["floor_seconds"] == pytest.approx(floor)
        assert row["floor_share"] == pytest.approx(floor / row["seconds"]["total"])
        assert row["peak_gib"] is None
        ratio = rows["sequential"]["seconds"]["total"] / row["seconds"]["total"]
        assert row["times_faster"] == pytest.approx(ratio)
        assert row["name"] in speed.table(record)
    for name in ("sequential", "elbo"):
        assert rows[name]["forwards"] == {"total": 50, "collect": 10, "elbo": 40}
    assert rows["dense"]["forwards"] == {"total": 70, "collect": 10, "elbo": 60}
    few = pa.AlignConfig.fast()
    passes = {"collect": few.collect_steps, "elbo": 3 * few.elbo_steps}
    assert rows["fast"]["forwards"] == {"total": sum(passes.values()), **passes}
    assert rows["fast"]["difference"] is None
    apart = rows["elbo"]["difference"]
    assert apart["losses"] < 1e-4
    assert apart["heatmaps"] < 1e-3
    assert apart["heatmaps_same_scores"] < 1e-4


@pytest.mark.parametrize("name", ["sdxl", "sd3"])
def test_other_families_equal_sequential(pipeline, name):
    model = pa.load(pipeline(name))
    latents = architectures.smooth_latents(model.backbone)[..., :16, :16]
    names = architectures.NOUNS[:3]
    reference = sequential.Sequential(
        model.backbone, speed.reference_job(model, latents, names)
    ).run()
    _, apart = speed.compare(model, latents, names, reference)
    assert apart["losses"] < 1e-4
    assert apart["heatmaps"] < 1e-3


def test_a_difference_is_seen():
    losses, maps = torch.ones(2, 3), torch.zeros(2, 4, 4)
    reference = sequential.Outcome({}, {}, losses, torch.ones(2), maps)
    other = losses.clone(), maps.clone()
    other[0][1, 2] += 0.5
    other[1][0, 1, 1] += 0.25
    found = types.SimpleNamespace(losses=other[0].numpy(), heatmaps=other[1].numpy())
    apart = speed.difference(found, found, reference)
    assert apart == {"losses": 0.5, "heatmaps": 0.25, "heatmaps_same_scores": 0.25}
    part = dataclasses.replace(reference, losses=losses * torch.nan, extrapolated=True)
    part.losses[0] = 1.0
    assert speed.difference(found, None, part) == {
        "losses": 0.0, "heatmaps": None, "heatmaps_same_scores": None,
    }  # fmt: skip


def test_three_classes_take_70_forwards(small):
    seen = 0

    def count(module, args, kwargs):
        nonlocal seen
        seen += len(kwargs["hidden_states"])

    model = pa.load(small.pipe)
    three = small.names[:3]
    work = sequential.Sequential(model.backbone, speed.reference_job(model, small.latents, three))
    handle = small.pipe.transformer.register_forward_pre_hook(count, with_kwargs=True)
    try:
        slow = work.run().forwards
        assert seen == 3 * 20 + 10
        result = speed.align_once(model, small.latents, three, speed.CONFIGS["elbo"])
        fast = speed.passes_of(result)
        assert seen == 2 * (3 * 20 + 10)
    finally:
        handle.remove()
    assert slow == fast == {"total": 70, "collect": 10, "elbo": 60}


@pytest.mark.parametrize("name", ["sd1", "sd3"])
def test_the_model_is_left_as_it_was(pipeline, name):
    model = pa.load(pipeline(name))
    backbone = model.backbone
    latents = architectures.smooth_latents(backbone)
    job = speed.reference_job(model, latents, ["dog", "cat"])
    text = backbone.encode_text(["a photo of dog"])
    step = backbone.schedule.at_indices([300])
    stock = dict(backbone.denoiser.attn_processors)
    before = backbone.predict(latents, step, text)

    work = sequential.Sequential(backbone, job)
    work.run(dict.fromkeys(sequential.PARTS, 1))
    two = latents.repeat(2, 1, 1, 1), step[torch.tensor([0, 0])], text[torch.tensor([0, 0])]
    with (  # after an error, too
        pytest.raises(ValueError, match="one plain sequence"),
        sequential.materialised(backbone.denoiser),
    ):
        backbone.predict(*two)

    after = dict(backbone.denoiser.attn_processors)
    assert after.keys() == stock.keys()
    assert all(after[key] is stock[key] for key in stock)
    assert torch.equal(before, backbone.predict(latents, step, text))


def test_options(small, monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "build", lambda arch, device, dtype: small)
    monkeypatch.setattr(speed, "SINGLE_CLASSES", 2)
    out = tmp_path / "new" / "speed.json"
    record, status = asked(
        "--arch", "tiny", "--classes", "2", "--memory", "low", "--sweep", "1", "--many", "2",
        "--seconds-limit", "0.05", "--out", str(out), "--compile", "eager",
    )  # fmt: skip
    assert status == 0
    assert json.loads(out.read_text()) == record
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == [
        "sequential", "elbo", "dense", "fast",
        "elbo, compiled", "dense, compiled", "fast, compiled", "dense, low",
    ]  # fmt: skip
    assert rows["sequential"]["extrapolated"] is True
    assert rows["sequential"]["forwards"]["total"] == 50
    assert rows["elbo"]["difference"]["losses"] < 1e-4  # of those that were computed
    assert rows["elbo"]["difference"]["heatmaps"] is None
    assert [row["classes"] for row in record["sweep"]] == [1]
    assert [row["dense"]["forwards"]["total"] for row in record["sweep"]] == [50]
    many = record["many"]["dense"]
    assert many["forwards"] == 2 * 10 + (1 + 2) * 20
    assert many["single"]["forwards"] == 50
    assert "sequential*" in speed.table(record)


def test_a_failing_row_is_said_and_the_others_run(small, monkeypatch, capsys):
    def broken(self, limit=None):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(speed, "build", lambda arch, device, dtype: small)
    monkeypatch.setattr(speed.Bench, "sequential", broken)
    record, status = asked("--arch", "tiny", "--classes", "1")
    assert status == 1
    rows = {row["name"]: row for row in record["rows"]}
    assert rows["sequential"] == {"name": "sequential", "error": "RuntimeError: no such luck"}
    assert rows["elbo"]["times_faster"] is None
    assert "no such luck" in capsys.readouterr().err
    assert "no such luck" in speed.table(record)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--classes", "0"],
        ["--classes", "201"],
        ["--sweep", "1,x"],
        ["--repeats", "0"],
        ["--batches", "0"],
        ["--offload", "model"],
    ],
)
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        speed.main(["--arch", "tiny", *arguments])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("arch", "millions"),
    [("sd15", 859.5), ("sd21", 865.9), ("sdxl", 2567.5), ("sd3", 2028.3), ("flux", 11901.4)],
)
def test_networks_have_the_published_sizes(arch, millions):
    pipe = architectures.PIPELINES[arch](torch.device("meta"))  # sizes alone, no memory
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    count = sum(weight.numel() for weight in denoiser.parameters())
    assert round(count / 1e6, 1) == millions


def test_names_are_distinct_and_single_tokens():
    tokenizer = architectures.build_tokenizer(("a", "photo", "of", *architectures.NOUNS), 77)
    assert len(set(architectures.NOUNS)) == len(architectures.NOUNS) == 200
    for noun in architectures.NOUNS:
        assert len(tokenizer(noun, add_special_tokens=False)["input_ids"]) == 1
    assert set(tiny.WORDS) & set(architectures.NOUNS[:6]) == set(architectures.NOUNS[:6])


def test_what_memory_depends_on():
    """Batches of several sizes, small ones, and very many classes on one picture."""
    record, status = asked(
        "--arch", "tiny", "--classes", "2", "--no-sequential", "--kinds", "fast",
        "--batches", "3", "--memory", "low", "--sweep", "2,25",
    )  # fmt: skip
    assert status == 0
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["fast", "fast, batches of 3", "fast, low"]
    assert [row["batch_size"]["elbo"] for row in rows.values()] == [15, 3, 15]
    assert [(row["classes"], list(row)[1:]) for row in record["sweep"]] == [
        (count, ["fast", "fast, low"]) for count in (2, 25)
    ]
    assert record["sweep"][1]["fast"]["forwards"]["elbo"] == 26 * pa.AlignConfig.fast().elbo_steps


@pytest.mark.parametrize("how", ["model", "group"])
def test_offloaded_rows(how):
    record, status = asked(
        "--arch", "tiny", "--classes", "2", "--no-sequential", "--kinds", "fast", "--offload", how
    )
    assert status == 0
    assert record["offload"] == how
    assert record["rows"][0]["forwards"]["total"] > 0
