"""docs/benchmark.md, rendered from committed result files."""

from __future__ import annotations

from pathlib import Path

from pixalign.bench.store import RESULT
from pixalign.bench.summary import read_result
from pixalign.bench.tables import markdown_page, warnings
from pixalign.pictures.pages import environment

TEMPLATE, FOLDER, PAGE = "benchmark.md.j2", "benchmark", "benchmark.md"


def render_benchmark(results: Path, template: Path) -> str:
    """The document as text, with the tables of ``results``/*/result.json, if there are any."""
    found = [read_result(path) for path in sorted(results.glob(f"*/{RESULT}"))]
    return (
        environment(html=False)
        .from_string(template.read_text(encoding="utf-8"))
        .render(results=found, tables=markdown_page(found, level=3).rstrip(), warnings=warnings)
    )
