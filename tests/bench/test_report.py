"""Tables, plots, the page and the document, from small runs on disk."""

import base64
import io
import json
import re
import sys

import pytest
from PIL import Image

from bench_runs import CLASSES, COUNTS, build, scenes
from pixalign.bench.plots import plots
from pixalign.bench.report import describe_config, duration, render_benchmark, write_report
from pixalign.bench.spec import load_spec
from pixalign.bench.summary import summarise_run, write_result
from pixalign.bench.tables import (
    Table,
    effect_text,
    markdown,
    markdown_page,
    result_grids,
    result_tables,
    signed,
)
from pixalign.config import AlignConfig
from pixalign.methods import method_of

pytest.importorskip("matplotlib")

DRAWS = 30
TOY = ("base=0", "size=0.5", "size=1", "rarity=0.5", "rarity=1")
VALUE = re.compile(r"(\d+\.\d) \((\d+\.\d)–(\d+\.\d)\)")


def texts(table, model, row):
    """The cells of one line."""
    (line,) = [line for line in table.rows if line[:2] == (model, row)]
    return list(line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two specs on two datasets, an unfinished run, lab twins and dials."""
    where = tmp_path_factory.mktemp("results")
    for dataset, names in (("voc", range(24)), ("coco", range(8))):
        build(where, "models", dataset=dataset, model="SD1.5", indices=names)
        build(where, "elbo-steps", dataset=dataset, model="SD1.5", indices=names)
    build(where, "models", dataset="voc", model="mine", indices=(0, 3), total=9)
    build(where, "lab-models", limit=12)
    build(where, "lab-frequency", counts=COUNTS)
    for spec in ("lab-sota", "lab-gamma", "lab-phrases"):
        build(where, spec)
    made = scenes(15, ("uncalibrated", "calibrated"), groups=TOY)
    build(where, "toy", indices=range(15), made=made)
    for path in where.iterdir():
        write_pictures(path / "pictures")
    return where


def write_pictures(folder):
    folder.mkdir()
    records = []
    for kind, colour in (("worst", "red"), ("best", "green")):
        Image.new("RGB", (40, 20), colour).save(folder / f"{kind}-1.png")
        one = {"file": f"{kind}-1.png", "key": f"the-{kind}", "kind": kind}
        records.append({**one, "miou": 12.345, "classes": ["dog", "<cat>"]})
    (folder / "pictures.json").write_text(json.dumps(records))


@pytest.fixture(scope="module")
def page(folder):
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results(folder, page):
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]
    assert len(found) == 11
    return found


@pytest.fixture(scope="module")
def by_spec(results):
    return {grid.any["spec"]: result_tables(grid) for grid in result_grids(results)}


def one_of(results, spec, dataset=None, model=None):
    return next(
        result
        for result in results
        if result["spec"] == spec
        and dataset in (None, result["dataset"])
        and model in (None, result["model"]["name"])
    )


# ---- tables ----


def test_values_and_the_papers_beside_them(results, by_spec):
    best, fixed, _ = by_spec["models"]
    beside = "Paper (ours minus it)"
    assert best.head == ("Model", "Row", "voc", beside, "coco", beside)
    voc = one_of(results, "models", "voc", "SD1.5")["rows"]["calibrated"]
    cells = texts(best, "SD1.5", "calibrated")
    figures = voc["oracle"]
    assert cells[2] == (
        f"{figures['miou']:.1f} ({figures['miou_low']:.1f}–{figures['miou_high']:.1f})"
    )
    assert cells[3] == f"68.15 ({figures['miou'] - 68.15:+.2f})".replace("-", "−")
    assert fixed.head == ("Model", "Row", "voc", "coco")
    assert texts(fixed, "SD1.5", "calibrated")[2].endswith(" at 0.40")
    assert texts(fixed, "SD1.5", "calibrated")[2].startswith(f"{voc['fixed']['miou']:.1f} (")


HEAD = ("Model", "Row", "Minus", "On", "Best threshold", "Fixed threshold")


def effects_of(table, row, on):
    """The cells of one line after its names."""
    (line,) = [line for line in table.rows if (line[1], line[3]) == (row, on)]
    return list(line[4:])


def test_effects_beside_the_papers(results, by_spec):
    effects = by_spec["models"][2]
    assert effects.head == (*HEAD, "Paper")
    row = one_of(results, "models", "voc", "SD1.5")["rows"]["calibrated"]
    assert effects.rows[0] == (
        *("SD1.5", "calibrated", "uncalibrated", "voc"),
        effect_text(row["effect"]["oracle"], 24),
        effect_text(row["effect"]["fixed"], 24),
        "+0.58",  # 68.15 - 67.57
    )
    names = [(line[0], line[3], line[6]) for line in effects.rows]
    assert names == [("SD1.5", "voc", "+0.58"), ("SD1.5", "coco", "+2.96"), ("mine", "voc", "–")]


def test_what_is_unfinished_or_unknown_shows(by_spec):
    best = by_spec["models"][0]
    mine = texts(best, "mine", "calibrated")
    assert mine[2].endswith("†")
    assert mine[3:] == ["–", "–", "–"]  # the paper has no such model; it was not run on coco
    assert not texts(best, "SD1.5", "calibrated")[2].endswith("†")
    assert not by_spec["models"][1].notes  # said once
    assert best.notes == ("† mine on voc: 2 images. Unfinished: 2 of 9 images.",)
    limited = by_spec["lab-models"][0]
    assert texts(limited, "embedded", "calibrated")[2].endswith("†")
    assert "Limited (--limit 12)" in limited.notes[0]


def test_a_twin_has_the_papers_range_of_effects(by_spec):
    best, _, effects = by_spec["lab-models"]
    assert best.head == ("Model", "Row", "lab")  # no number of the paper's beside other pictures
    paper = load_spec("models").paper
    expected = [
        number - paper[model, "uncalibrated", dataset]
        for (model, row, dataset), number in paper.items()
        if row == "calibrated"
    ]
    assert len(expected) == 24
    assert effects.head == (*HEAD, "Paper: range")
    ours = effects_of(effects, "calibrated", "lab")
    assert ours[-1] == f"{min(expected):+.2f} to {max(expected):+.2f}" == "+0.43 to +4.04"
    assert "none of them these" in effects.notes[-1]


def test_metrics_side_by_side(results, by_spec):
    best, _, effects = by_spec["lab-phrases"]
    assert best.head == ("Model", "Row", "mIoU", "precision", "F1")
    row = one_of(results, "lab-phrases")["rows"]["ELB with AE"]
    cells = texts(best, "embedded", "ELB with AE")
    assert VALUE.fullmatch(cells[2])
    assert cells[3:] == [f"{row['oracle']['precision']:.1f}", f"{row['oracle']['f1']:.1f}"]
    # Precision rises by 2.89, 2.67 and 1.08 in the paper.
    base = one_of(results, "lab-phrases")["rows"]["w/o ELB"]
    changes = [row[kind]["precision"] - base[kind]["precision"] for kind in ("oracle", "fixed")]
    expected = [*map(signed, changes), "+1.08 to +2.89"]
    assert effects_of(effects, "ELB with AE", "precision") == expected
    assert effects_of(effects, "ELB with AE", "mIoU")[2] == "+0.27 to +1.88"


def test_frequency_side_by_side(results, by_spec):
    best, fixed, effects = by_spec["lab-frequency"]
    assert best.head == fixed.head == ("Model", "Row", "rare", "common", "frequent")
    row = one_of(results, "lab-frequency")["rows"]["calibrated"]["frequency"]
    for place, group in enumerate(("rare", "common", "frequent"), 2):
        for table, entry in ((best, row[group]), (fixed, row[group]["fixed"])):
            cell = texts(table, "embedded", "calibrated")[place]
            assert cell.startswith(f"{entry['miou']:.1f} (")
    fixed_effect = effect_text(row["rare"]["fixed"]["effect"], 12)
    found = effects_of(effects, "calibrated", "rare")
    assert found[1:] == [fixed_effect, "+2.24 to +4.71"]  # COCO, ADE20K


def test_dials_line_by_line(results, by_spec):
    best, fixed = by_spec["toy"]
    names = ("uncalibrated", "calibrated")
    assert best.head == ("Model", "Dial", "Pairs", *names, "calibrated minus uncalibrated")
    assert [line[1] for line in best.rows] == list(TOY)
    groups = one_of(results, "toy")["rows"]["calibrated"]["groups"]
    for table, entry in ((best, groups["size=1"]), (fixed, groups["size=1"]["fixed"])):
        cells = texts(table, "embedded", "size=1")
        assert cells[2] == "3"
        assert cells[4].startswith(f"{entry['iou']:.1f} (")
        assert cells[5] == effect_text(entry["effect"], 3)


def test_rows_that_were_not_run_show_as_such(by_spec):
    best = by_spec["lab-sota"][0]
    assert [line[1] for line in best.rows] == [
        "DAAM", "OVAM, not optimised", "OVAM (supervised)", "DiffPNG", "DiffSegmenter",
        "Semantic DiffSeg", "uncalibrated", "ELBO-T2IAlign",
    ]  # fmt: skip
    assert texts(best, "embedded", "DAAM")[2] == "not run"
    assert VALUE.fullmatch(texts(best, "embedded", "ELBO-T2IAlign")[2])
    assert len(by_spec["lab-sota"]) == 3  # only one method was run: no seconds


def test_bold_means_that_0_is_outside():
    assert effect_text([0.36, 0.22, 0.52], 20) == "**+0.36 (+0.22 to +0.52)**"
    assert effect_text([-0.36, -0.5, -0.2], 99) == "**−0.36 (−0.50 to −0.20)**"
    assert effect_text([0.36, 0.22, 0.52], 19) == "+0.36 (+0.22 to +0.52)"
    assert effect_text([0.36, -0.1, 0.52], 99) == "+0.36 (−0.10 to +0.52)"
    assert effect_text([0.0, 0.0, 0.0], 99) == "0.00 (0.00 to 0.00)"
    assert effect_text([-0.001], 99) == "0.00"
    assert effect_text(None, 99) == effect_text([None, None, None], 99) == "–"


def test_only_effects_are_bold(by_spec):
    bold = {
        title
        for one in by_spec.values()
        for table in one
        for row in table.rows
        for title, text in zip(table.head, row, strict=True)
        if text.startswith("**")
    }
    assert bold == {"Best threshold", "Fixed threshold"}  # of the dials, too few pairs


def test_markdown():
    table = Table("A title", ("a", "b|c"), (("1", "**2**"),), ("A note.",))
    assert markdown(table) == ("A title:\n\n| a | b\\|c |\n|---|---|\n| 1 | **2** |\n\nA note.")
    assert markdown_page([]) == ""


def test_a_changed_spec_and_one_of_ones_own(folder, results):
    result = dict(one_of(results, "lab-models"), digest="0" * 64, limit=None)
    said = "The spec has changed since this run."
    assert said not in markdown_page([result])  # it is whole
    assert said in markdown_page([dict(result, complete=False)])
    (grid,) = result_grids([dict(result, spec="my-own")])
    assert grid.paper == {}
    assert [table.head[-1] for table in result_tables(grid)] == ["lab", "lab", "Fixed threshold"]


# ---- plots ----


def test_plots_are_those_that_apply(page):
    titles = {}
    for part in page.split('<h2 id="')[1:]:
        for run in part.split("<h3>")[1:]:
            titles[part.split('"')[0]] = re.findall(r"<figcaption>(By [^<]+)", run)
    assert titles["models"] == titles["lab-sota"] == ["By threshold", "By area"]
    assert titles["lab-gamma"] == ["By strength", "By threshold", "By area"]
    assert titles["elbo-steps"] == ["By ELBO steps", "By threshold", "By area"]
    assert titles["lab-frequency"] == ["By threshold", "By area", "By frequency"]
    assert titles["toy"] == ["By threshold", "By area", "By dial"]


def test_a_plot_is_a_picture_and_always_the_same(page, results):
    for plot in plots(one_of(results, "toy")):
        assert base64.b64encode(plot.png).decode() in page
        image = Image.open(io.BytesIO(plot.png))
        assert image.width > 400
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_without_matplotlib(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r'pip install "pixalign\[bench\]"'):
        plots(results[0])


# ---- the page ----


def test_the_page_holds_every_row(page, results):
    for result in results:
        assert f'<h2 id="{result["spec"]}">{result["title"]}</h2>' in page
        for name in (*result["rows"], *result["missing"]):
            assert re.search(rf"<td>{re.escape(name)}( \(supervised\))?</td>", page), name


def test_the_page_needs_nothing_from_outside(page):
    assert "http" not in page
    assert "<script" not in page
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) > 40
    assert all(source.startswith(("data:image/", "#")) for source in sources)
    targets = [source[1:] for source in sources if source.startswith("#")]
    assert all(f'id="{target}"' in page for target in targets)


def test_the_page_says_what_is_partial_and_where_all_comes_from(page):
    assert '<p class="warning">mine on voc: Unfinished: 2 of 9 images.</p>' in page
    assert "Limited (--limit 12): not the whole dataset." in page
    assert "2 of 9 images of the split test" in page
    assert page.index("the-best") < page.index("the-worst")
    assert "dog, &lt;cat&gt;; mean IoU 12.3&nbsp;%" in page
    for text in ("a CPU", "abc123", "torch 2", "48.0 s, 2.00 s an image"):
        assert text in page
    assert "<dt>1/gamma = 2</dt><dd>default, method = &#34;elbo&#34;, gamma = 0.5</dd>" in page
    assert "<dt>uncalibrated</dt><dd>uncalibrated</dd>" in page


def test_what_is_written_where(folder, results, tmp_path):
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert text == f"# Benchmark\n\n{markdown_page(results)}"
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    path = write_report(folder / "lab-models--lab--embedded", tmp_path / "new")
    assert path == tmp_path / "new" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "tables.md"]


def test_a_run_that_has_just_begun(tmp_path):
    build(tmp_path, "lab-models", indices=(), total=30)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Unfinished: 0 of 30 images." in page
    assert "<td>calibrated</td>" in page


def test_wrong_folders_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is no folder; .* folder of runs.*run\.json"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no results; .*run\.json"):
        write_report(tmp_path)
    build(tmp_path, "lab-models", indices=range(2))
    pictures = tmp_path / "lab-models--lab--embedded" / "pictures"
    pictures.mkdir()
    (pictures / "pictures.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"pictures\.json' is damaged"):
        write_report(tmp_path)


@pytest.mark.parametrize("file", ["../../secret.png", "/secret.png", "..", "sub/x.png", 3, None])
def test_a_list_of_pictures_embeds_none_from_elsewhere(tmp_path, file):
    build(tmp_path, "lab-models", indices=range(2))
    pictures = tmp_path / "lab-models--lab--embedded" / "pictures"
    write_pictures(pictures)
    Image.new("RGB", (40, 20), "blue").save(tmp_path / "secret.png")  # ../../secret.png
    record = json.loads((pictures / "pictures.json").read_text())[0]
    (pictures / "pictures.json").write_text(json.dumps([{**record, "file": file}]))
    with pytest.raises(ValueError, match=r"pictures\.json' is damaged: .* is no plain file name"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_names_that_are_html_are_text_in_both_files(tmp_path):
    """Of whatever a run's header may hold: its title, notes, label, rows, model and classes."""
    evil = "<img src=x onerror=alert(1)>"
    build(tmp_path, "lab-models", model=evil, limit=12)
    (path,) = tmp_path.glob("*/run.json")
    header = json.loads(path.read_text())
    header |= {"title": evil, "notes": [evil], "label": evil, "classes": [evil, *CLASSES[1:]]}
    header["spec"] = f"mine {evil}"
    path.write_text(json.dumps(header))
    write_report(tmp_path)
    for name, shown in (("report.html", "&lt;img src=x"), ("tables.md", "&lt;img src=x")):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "<img src=x" not in text, name
        assert text.count(shown) >= 4, name


def test_configs_and_durations_in_few_words():
    model = {"family": "sd3", "settings": {"gamma": 0.5, "threshold": 0.3}}

    def described(config):
        made = method_of(config).configured(config)
        record = made.resolved("sd3", model["settings"]).to_dict()
        return describe_config(json.loads(json.dumps(record)), model)

    for preset in ("default", "paper", "official", "fast", "uncalibrated"):
        assert described(AlignConfig.preset(preset)) == preset
    text = described(AlignConfig.official(gamma=0.25, elbo_timesteps=None))
    assert text == "official, gamma = 0.25, elbo_timesteps = null"
    for config, text in (
        (AlignConfig(edges="none"), 'default, edges = "none"'),
        (AlignConfig(method="elbo"), 'default, method = "elbo"'),
        (AlignConfig(method="likelihood"), 'default, method = "likelihood"'),
        (AlignConfig.fast(method="attention"), 'fast, method = "attention"'),
        (AlignConfig(method="daam"), 'default, method = "daam"'),
        (
            AlignConfig(method="daam", calibrate="elbo"),
            'default, method = "daam", calibrate = "elbo"',
        ),
    ):
        assert described(config) == text
    found = [duration(seconds) for seconds in (12.34, 200, 3599, 7500)]
    assert found == ["12.3 s", "3 min 20 s", "59 min 59 s", "2 h 5 min"]


# ---- the document ----


@pytest.fixture
def template(request):
    path = request.config.rootpath / "docs" / "benchmark.md.j2"
    if not path.is_file():
        pytest.skip("the documents are in the repository")
    return path


def test_the_document_with_results_and_without(template, folder, results, tmp_path):
    text = render_benchmark(tmp_path / "nothing", template)
    assert "No result file is committed yet." in text
    assert "pixalign bench check ROOT" in text
    assert "http" not in text
    text = render_benchmark(folder, template)
    assert "No result file" not in text
    for result in results:
        assert f"### {result['title']}" in text
    assert "| models, mine on voc (test) | 2 of 9. Unfinished: 2 of 9 images. |" in text
    assert markdown_page(results, level=3).rstrip() in text


def test_a_result_does_not_need_its_run(template, tmp_path):
    """What is committed is result.json alone."""
    run = build(tmp_path / "runs", "lab-models")
    write_result(run, DRAWS)
    kept = tmp_path / "docs" / run.folder.name
    kept.mkdir(parents=True)
    (run.folder / "result.json").rename(kept / "result.json")
    value = summarise_run(run, DRAWS)["rows"]["calibrated"]["oracle"]["miou"]
    assert f"| embedded | calibrated | {value:.1f} (" in render_benchmark(kept.parent, template)
