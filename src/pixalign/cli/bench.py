"""``pixalign bench``: every table of the paper as a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.backbones.grounding import GroundedSam
from pixalign.bench.annotating import (
    SIGNALS,
    AgreeingAnnotators,
    AlignmentAnnotator,
    Annotator,
    Belief,
    GroundedSamAnnotator,
)
from pixalign.bench.building import (
    AEP_COUNT,
    BuildPrompt,
    BuildRequest,
    build_dataset,
    read_build_prompts,
)
from pixalign.bench.datasets import DATASETS
from pixalign.bench.generation_study import (
    CLIP,
    format_generation,
    prompts_of,
    run_generation_study,
)
from pixalign.cli import common, stop
from pixalign.cli.common import one_of, option
from pixalign.core.files import check_folder
from pixalign.core.values import Phrase
from pixalign.core.wording import counted
from pixalign.generation.plan import GenerationSettings
from pixalign.generation.prompt_sets import PROMPT_SETS, dvmp
from pixalign.generation.run import GENERATION_METHODS

Datasets = Annotated[list[str] | None, option("Only this dataset; repeatable.", **one_of(DATASETS))]
Limit = Annotated[int | None, option("Only this many images.", min=1)]

# Who finds objects in drawn pictures, and whose weights stand for Grounded SAM.
ANNOTATORS = ("dense", "grounded-sam", "both")
DETECTOR, SEGMENTER = "IDEA-Research/grounding-dino-base", "facebook/sam-vit-huge"
_SHOWN = 20  # problems of a dataset; --json has all

bench = typer.Typer(help="Datasets, metrics and the tables of the paper.", no_args_is_help=True)


@bench.command()
def run(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC...", help="YAML files or names; patterns such as 'lab-*'. See `bench ls`."
        ),
    ],
    root: Annotated[Path | None, option("Folder that holds the datasets.")] = None,
    model: Annotated[
        str | None,
        option(
            "The paper's name (SD1.5), a hub id or a folder.", show_default="the embedded model"
        ),
    ] = None,
    dataset: Datasets = None,
    limit: Limit = None,
    out: Annotated[Path, option("Folder for the results.")] = Path("bench-results"),
    counts: Annotated[
        Path | None, option("How often captions name each class; see `bench count`.")
    ] = None,
    save_masks: Annotated[
        bool, option("Save the masks of the images measured in this run.", "--save-masks")
    ] = False,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
) -> None:
    """Run tables. After a stop, the same command continues. Then see `bench report`."""
    from pixalign.bench.command import run_specs
    from pixalign.bench.spec import MODELS

    def load_model(where: str) -> Any:
        asked = None if model is None else MODELS.get(model, model)
        return common.load_model(asked, where, dtype, batch_size, progress=False)

    options: dict[str, Any] = {"root": root, "datasets": dataset or [], "limit": limit, "out": out}
    options |= {"counts": counts, "seed": seed, "device": device, "save_masks": save_masks}
    try:
        with common.said_plainly():
            for folder, result in run_specs(specs, load_model, **options):
                _print_result(folder, result)
    except KeyboardInterrupt:
        stop(f"stopped; what is measured is kept in {out}, and the same command continues")


def _print_result(folder: Path, result: dict[str, Any]) -> None:
    print(f"{result['title']}: {result['done']} images of {result['dataset']}, in {folder}")
    width = max(map(len, result["rows"]))
    for name, row in result["rows"].items():
        best, effect = row["oracle"], row["effect"]["oracle"]
        print(
            f"  {name:<{width}}  mIoU {best['miou']:.2f} ({best['miou_low']:.2f} to "
            f"{best['miou_high']:.2f}), fixed threshold {row['fixed']['miou']:.2f}"
            + (f", {effect[0]:+.2f} to {row['baseline']!r}" if effect else "")
        )
    if result["missing"]:
        print(f"  not run: {', '.join(result['missing'])}")


@bench.command()
def ls(json_: common.Json = False) -> None:
    """List the tables: what they compare, on which datasets, with how many rows."""
    from pixalign.bench.spec import load_spec, spec_names

    specs = [
        spec.model_dump(include={"name", "label", "title", "datasets"}) | {"rows": len(spec.rows)}
        for spec in map(load_spec, spec_names())
    ]
    if json_:
        common.print_json(specs)
        return
    width = max(len(spec["name"]) for spec in specs)
    for spec in specs:
        datasets = ", ".join(spec["datasets"])
        print(f"{spec['name']:<{width}}  {spec['label']:<28} {datasets}; {spec['rows']} rows")
        print(f"{'':<{width}}  {spec['title']}")


@bench.command()
def check(
    root: Annotated[Path, typer.Argument(help="Folder that holds the datasets.")],
    dataset: Datasets = None,
    split: Annotated[str | None, typer.Option(show_default="the usual one")] = None,
    limit: Limit = None,
    decode: Annotated[
        bool, option("Read whole pictures, which finds truncated files.", "--decode")
    ] = False,
    json_: common.Json = False,
) -> None:
    """Check datasets: read every picture's size and every mask, and count the classes."""
    from pixalign.bench.command import check_root

    records = []
    for record in check_root(root, dataset or [], split, limit, decode):
        records.append(record)
        if not json_:
            _print_check(record)
    if json_:
        common.print_json(records)
    if any(record["problems"] for record in records):
        raise typer.Exit(2)


def _print_check(record: dict[str, Any]) -> None:
    problems = record["problems"]
    if "images" in record:
        print(
            f"{record['name']} {record['split']}: {record['images']} images, {record['empty']} of "
            f"them without a class; {record['background']:.1%} of the pixels background, "
            f"{record['ignored']:.1%} not counted"
        )
        for name, images in record["images_per_class"].items():
            print(f"  {images:>6}  {name}")
        if record["unknown"]:
            print(
                f"{record['name']}: {len(record['unknown'])} pictures belong to no mask or list, "
                f"{record['unknown'][0]} first"
            )
    for problem in problems[:_SHOWN]:
        print(f"problem: {record['name']}: {problem}", file=sys.stderr)
    if len(problems) > _SHOWN:
        print(f"problem: {record['name']}: {len(problems) - _SHOWN} more", file=sys.stderr)


@bench.command()
def count(
    captions: Annotated[list[Path], typer.Argument(help="txt, csv, tsv or parquet, also .gz.")],
    classes: Annotated[str, option("A dataset's name, or a file with one name per line.")],
    out: Annotated[Path | None, option("JSON file for the counts.")] = None,
    column: Annotated[str | None, option("The column of the captions.")] = None,
) -> None:
    """Count how many captions name each class: whole words, also plurals."""
    from pixalign.bench.command import class_names
    from pixalign.bench.datasets.captions import count_captions
    from pixalign.core.files import write_json

    counts = count_captions(captions, class_names(classes), column=column, progress=True)
    if out is None:
        common.print_json(counts)
    else:
        write_json(out, counts)
        print(f"written to {out}")


@bench.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `bench run --out` made.")],
    out: Annotated[Path | None, option("Folder for the report.", show_default="DIR")] = None,
    template: Annotated[
        Path | None, option("Fill NAME.md.j2 with the results instead, into NAME.md.")
    ] = None,
) -> None:
    """Write report.html and tables.md for the runs in a folder."""
    from pixalign.bench.report import render_benchmark, write_report
    from pixalign.core.files import write_text

    if template is None:
        print(f"open {write_report(folder, out)}")
        return
    page = (out or template.parent) / template.name.removesuffix(".j2")
    write_text(page, render_benchmark(folder, template))
    print(f"written to {page}")


@bench.command()
def generation(
    out: Annotated[Path, option("Folder for the result file and the pictures.")],
    model: common.Model = None,
    set_: Annotated[
        list[str] | None,
        option("A set of prompts; repeatable.", "--set", show_default="all", **one_of(PROMPT_SETS)),
    ] = None,
    file: Annotated[list[str] | None, option("Prompts from a file: abc6k=PATH or ae=PATH.")] = None,
    clip: Annotated[str, option("The CLIP to score with: a hub id or folder.")] = CLIP,
    prompts: Annotated[int, option("How many prompts of each set.", min=2)] = 80,
    seeds: Annotated[int, option("Pictures of each prompt.", min=1)] = 2,
    steps: common.Steps = 50,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
) -> None:
    """Draw sets of prompts by every method, and compare the pictures by CLIP score."""
    check_folder(out)
    files = {name: Path(path) for name, _, path in (text.partition("=") for text in file or [])}
    names = [*(set_ or ()), *files] or list(PROMPT_SETS)
    sets = {name: prompts_of(name, files)[:prompts] for name in names}
    loaded = common.load_model(model, device, dtype)
    options: dict[str, Any] = {"sets": sets, "seeds": seeds, "steps": steps, "clip": clip}
    print(format_generation(run_generation_study(loaded, out, **options)))


@bench.command()
def build(
    out: Annotated[Path, option("Folder for the dataset.")],
    model: common.Model = None,
    prompts: Annotated[
        str, option(f"A set ({', '.join(PROMPT_SETS)}), or a file of prompts (.json, .txt).")
    ] = "dvmp",
    count: Annotated[
        int | None,
        option("The first so many prompts.", min=1, show_default="741 of dvmp, else all"),
    ] = None,
    annotator: Annotated[str, option("Who finds the objects.", **one_of(ANNOTATORS))] = "dense",
    detector: Annotated[str, option("Grounding DINO: a hub id or folder.")] = DETECTOR,
    segmenter: Annotated[str, option("SAM or SAM 2: a hub id or folder.")] = SEGMENTER,
    box_threshold: Annotated[float, option("Least score of a detector's box.")] = 0.35,
    any_verdict: Annotated[
        bool, option("Keep objects of which dense is not sure, too.", "--any-verdict")
    ] = False,
    least: Annotated[
        list[str] | None,
        option(f"NAME=BOUND: leave out objects below it, of {', '.join(SIGNALS)}; repeatable."),
    ] = None,
    pixels: Annotated[float, option("Least probability of a pixel's label; 0 counts all.")] = 0.0,
    method: Annotated[
        str, option("How pictures are drawn.", **one_of(GENERATION_METHODS))
    ] = "plain",
    licence: Annotated[str | None, option("Of pictures and masks; is written down.")] = None,
    together: Annotated[
        int, option("Pictures drawn at once, and lost at once by a kill.", min=1)
    ] = 1,
    seed: common.Seed = 0,
    steps: common.Steps = 50,
    guidance: common.Guidance = None,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
) -> None:
    """Draw prompts and annotate the pictures: a dataset in AEP's layout; goes on if stopped."""
    belief = Belief(not any_verdict, dict(map(_bound, least or ())), pixels)
    check_folder(out)
    texts = _build_prompts(prompts, count)
    loaded = common.load_model(model, device, dtype)
    guided = loaded.backbone.guidance if guidance is None else guidance
    request = BuildRequest(
        texts, prompts, method, GenerationSettings(steps, guided), seed, licence, together
    )
    phrases = [Phrase(name) for name in request.classes]
    common.print_warnings(common.vocabulary_notes(model, phrases)[-1:])
    dense = AlignmentAnnotator(loaded)
    networks = (detector, segmenter, loaded.backbone.device, box_threshold)
    try:
        with common.said_plainly():
            if annotator == "dense":
                finder: Annotator = dense
            else:
                grounded = GroundedSamAnnotator(GroundedSam(*networks))
                finder = (
                    grounded if annotator == "grounded-sam" else AgreeingAnnotators(dense, grounded)
                )
            made = build_dataset(loaded, finder, request, out, belief, sys.stderr.isatty())
    except KeyboardInterrupt:
        stop(f"stopped; finished pictures are kept in {out}, and the same command goes on")
    objects = made["objects"]
    print(
        f"{counted(made['pictures'], 'picture')} in {out}, "
        f"{objects['annotated']} of {objects['asked']} objects annotated, "
        f"{made['ignored']:.1%} of the pixels not counted; "
        f"{counted(made['left_out'], 'picture')} left out"
    )


def _bound(text: str) -> tuple[str, float]:
    """ "standing=0.01" as a name and a number."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ValueError(f"--least is {text!r}; allowed: NAME=NUMBER") from error


def _build_prompts(where: str, count: int | None) -> tuple[BuildPrompt, ...]:
    """The prompts of a set or of a file, or the first so many of them."""
    if where == "dvmp":
        return tuple(map(BuildPrompt.of, dvmp(count or AEP_COUNT)))
    if where in PROMPT_SETS:
        return tuple(map(BuildPrompt.of, PROMPT_SETS[where]()[:count]))
    if not Path(where).is_file():
        sets = ", ".join(PROMPT_SETS)
        raise FileNotFoundError(f"prompts are {where!r}; allowed: {sets}, or a file's path")
    return read_build_prompts(Path(where))[:count]
