"""The study is runs of the benchmark: which ones, how they go on, and what they draw."""

import pytest

from lab import study
from lab.study import RUNS, StudyRun, read_study, run_study
from pixalign.bench import measuring
from pixalign.bench.spec import spec_names


def test_every_run_is_of_a_shipped_spec():
    assert {run.spec for run in RUNS} <= set(spec_names())
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_a_study_is_run_and_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "RUNS", (StudyRun("lab-models", None, 2), *RUNS[1:]))
    with pytest.raises(ValueError, match=r"only is \['nothing'\]; allowed: patterns of lab-models"):
        list(run_study(tmp_path, only=["nothing"]))

    def run():
        options = {"only": ["lab-models/*"], "limit": 1, "device": "cpu", "show": False}
        return list(run_study(tmp_path, **options))

    ((folder, result),) = run()
    assert folder == tmp_path / "lab-models--lab--embedded"
    assert (result["done"], result["limit"], result["model"]["dtype"]) == (1, 1, "float32")
    monkeypatch.setattr(measuring, "class_losses", None)  # nothing is measured again
    assert run() == [(folder, result)]
    with pytest.raises(FileNotFoundError, match=r"'study-presets/embedded' is missing .*lab study"):
        read_study(tmp_path)
    monkeypatch.setattr(study, "RUNS", study.RUNS[:1])
    assert read_study(tmp_path) == {"lab-models": {"embedded": result}}
