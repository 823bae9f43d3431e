"""The study is runs of the benchmark: which ones, how they go on, and what they draw."""

import pytest

from lab import study
from lab.study import RUNS, read_study, run_study
from pixalign.bench import measuring
from pixalign.bench.spec import spec_names


def test_every_run_is_of_a_shipped_spec():
    assert {run.split("/")[0] for run in RUNS} <= set(spec_names())
    assert len(RUNS) == 9


def test_a_study_is_run_and_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "RUNS", {"lab-models/embedded": 2, "study-presets/embedded": 60})
    with pytest.raises(ValueError, match=r"only is \['nothing'\]; allowed: patterns of lab-models"):
        list(run_study(tmp_path, only=["nothing"]))

    def run():
        options = {"only": ["lab-models/*"], "limit": 1, "device": "cpu", "show": False}
        return list(run_study(tmp_path, **options))

    ((folder, result),) = run()
    assert folder == tmp_path / "lab-models--lab--embedded"
    assert (result["done"], result["limit"], result["model"]["dtype"]) == (1, 1, "float32")
    monkeypatch.setattr(measuring, "text_errors", None)  # nothing is measured again
    assert run() == [(folder, result)]
    with pytest.raises(FileNotFoundError, match=r"'study-presets/embedded' is missing .*lab study"):
        read_study(tmp_path)
    monkeypatch.setattr(study, "RUNS", {"lab-models/embedded": 2})
    assert read_study(tmp_path) == {"lab-models": {"embedded": result}}
