"""A tiny model and small specs to run on it."""

import pytest

import pixalign as pa
from bench_folder import SPEC
from pixalign.bench.spec import load_spec


@pytest.fixture
def model(wide):
    return pa.load(wide("sd1"))


@pytest.fixture
def spec_of(tmp_path):
    """A spec of a text, or of the rows of SPEC before the one of a name, and further rows."""

    def spec_of(rows="", before="plain", name="own"):
        path = tmp_path / f"{name}.yaml"
        end = SPEC.index(f"  - name: {before}") if before else len(SPEC)
        path.write_text(SPEC[:end] + rows)
        return load_spec(path)

    return spec_of


@pytest.fixture
def small(spec_of):
    """Two rows that are quick."""
    return spec_of(before="five", name="small")
