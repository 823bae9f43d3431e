"""docs/lab.md says what the committed result files say."""

import shutil

import pytest

from lab.report import TASKS, correlation, points, read_results, render, report, signed
from pixalign.bench.report import render_benchmark
from pixalign.bench.spec import load_spec


@pytest.fixture
def docs(request):
    folder = request.config.rootpath / "docs"
    if not (folder / "lab.md.j2").is_file():
        pytest.skip("the documents are in the repository")
    return folder


@pytest.mark.parametrize(("name", "read"), [("lab", read_results), *TASKS.items()])
def test_the_committed_page_is_the_rendered_one(docs, name, read):
    text = render(docs / f"{name}.md.j2", read(docs / name))
    assert text == (docs / f"{name}.md").read_text(encoding="utf-8")


def test_the_page_follows_the_results(docs):
    results = read_results(docs / "lab")
    study = results["study"]["study-exponents"]["embedded"]
    study["rows"]["uncalibrated"]["oracle"]["miou"] = 12.34
    assert " 12.3 (" in render(docs / "lab.md.j2", results)


def test_report_writes_page_and_figures(docs, tmp_path):
    pytest.importorskip("matplotlib")
    shutil.copytree(docs / "lab", tmp_path / "lab", ignore=shutil.ignore_patterns("*.png"))
    shutil.copytree(docs / "benchmark", tmp_path / "benchmark")
    shutil.copy(docs / "lab.md.j2", tmp_path)
    assert report(tmp_path) == [tmp_path / "lab.md"]
    drawn = {path.name for path in (tmp_path / "lab" / "study").glob("*.png")}
    assert drawn == {"controls.png", "strength.png", "groups.png", "stress.png"}
    text = (tmp_path / "lab.md").read_text(encoding="utf-8")
    assert all(f"lab/study/{name}" in text for name in drawn)


def test_results_hold_every_control(docs):
    """Of every row of the spec, with intervals around every value."""
    study = read_results(docs / "lab")["study"]
    for result in study["study-exponents"].values():
        assert not result["missing"]
        for name in [row.name for row in load_spec("study-exponents").rows]:
            entry = result["rows"][name]["oracle"]
            assert entry["miou_low"] <= entry["miou"] <= entry["miou_high"]


def test_numbers_are_written_alike():
    entry = {"value": -0.354, "low": -0.4, "high": 0.02}
    assert signed(entry) == "−0.35 (−0.40 to +0.02)"
    assert signed([-0.354, -0.4, 0.02]) == signed(entry)
    assert (signed(None), signed([1.0])) == ("–", "+1.00")
    assert correlation([-0.354, -0.4, 0.02]) == "−.35 (−.40 to +.02)"
    assert points({"miou": 76.57, "miou_low": 76.04, "miou_high": 76.91}) == "76.6 (76.0 to 76.9)"


def test_the_benchmarks_page_is_the_rendered_one(docs):
    text = render_benchmark(docs / "benchmark", docs / "benchmark.md.j2")
    assert text == (docs / "benchmark.md").read_text(encoding="utf-8")
