"""The shipped specs: numbers that the paper prints twice agree, rows do what their names say."""

import pytest

from pixalign import AlignConfig
from pixalign.bench.spec import load_spec, spec_names
from pixalign.diffusion.timesteps import STRATEGIES
from pixalign.methods import METHODS

OWN = ["lab-evidence", "lab-evidence-controls", "lab-evidence-steps"]  # not in the paper
STUDY = [name for name in spec_names() if name.startswith("study-")]
TWINS = [name for name in spec_names() if name.startswith("lab-") and name not in OWN]
ORIGINALS = [name for name in spec_names() if name not in (*TWINS, *STUDY, *OWN)]


def columns(spec, model, row):
    """The paper's numbers of one row, by column."""
    paper = load_spec(spec).paper
    return {rest: number for (*own, rest), number in paper.items() if own == [model, row]}


@pytest.mark.parametrize(
    ("first", "second", "models"),
    [
        ("models/calibrated", "sota/ELBO-T2IAlign", ["SD1.5"]),
        ("models/calibrated", "elbo-steps/20 steps", ["SD1.5", "SD2", "SDXL"]),
        ("models/calibrated", "fixed-scores/ELB based S", ["SD1.5", "SD2", "SDXL"]),
        ("elbo-steps/1 step", "more-elbo-steps/1 step", ["SD1.5", "SD2"]),
        ("elbo-steps/5 steps", "more-elbo-steps/5 steps", ["SD1.5", "SD2"]),
        ("elbo-steps/20 steps", "more-elbo-steps/20 steps", ["SD1.5", "SD2"]),
        ("more-elbo-steps/10 steps", "strategies/even", ["SD1.5"]),
        ("more-elbo-steps/10 steps", "collecting/10 small", ["SD1.5"]),
        ("sota/DAAM", "methods-calibrated/DAAM", ["SD1.5"]),
        ("sota/DiffSegmenter", "methods-calibrated/DiffSegmenter", ["SD1.5"]),
    ],
)
def test_what_the_paper_prints_twice_agrees(first, second, models):
    (one, row), (other, same) = first.split("/"), second.split("/")
    for model in models:
        assert columns(one, model, row) == columns(other, model, same) != {}


def test_every_table_has_a_twin_on_the_lab():
    assert sorted(f"lab-{name}" for name in ORIGINALS if name != "toy") == TWINS
    for name in TWINS:
        twin, original = load_spec(name), load_spec(name.removeprefix("lab-"))
        assert twin.extends == original.name
        assert original.extends is None
        assert twin.datasets == (("lab-phrases",) if name == "lab-phrases" else ("lab",))
        for field in ("label", "title", "columns", "paper"):
            assert getattr(twin, field) == getattr(original, field)
        shared = [row.name for row in twin.rows if row.name in [one.name for one in original.rows]]
        assert shared == [row.name for row in original.rows]  # a twin may have rows of its own
        assert twin.notes[: len(original.notes)] == original.notes
        assert twin.digest() != original.digest()


CHANGES = {
    "sota": {"method", "calibrate"},
    "models": {"method", "calibrate"},
    "more-models": {"method", "calibrate"},
    "phrases": {"method", "calibrate", "elbo_text"},
    "elbo-steps": {"elbo_steps", "elbo_timesteps"},
    "more-elbo-steps": {"elbo_steps", "elbo_timesteps"},
    "strategies": {"elbo_steps", "elbo_timesteps", "elbo_strategy"},
    "fixed-scores": {"gamma", "centred"},
    "collecting": {
        "collect_steps", "collect_strategy", "collect_timesteps", "elbo_steps", "elbo_timesteps"
    },
    "frequency": {"method", "calibrate"},
    "methods-calibrated": {"method", "calibrate"},
    "gamma": {"gamma"},
    "toy": {"method", "calibrate"},
}  # fmt: skip


@pytest.mark.parametrize("name", [*ORIGINALS, *TWINS])
def test_rows_change_only_what_the_table_is_about(name):
    """From the released code's settings; twins and the toy data from the default ones."""
    preset = "default" if name == "toy" or name in TWINS else "official"
    start = AlignConfig.preset(preset, method="elbo", calibrate="elbo").to_dict()
    for row in load_spec(name).rows:
        changed = {k: v for k, v in row.config.to_dict().items() if v != start[k]}
        method = METHODS[row.method]
        other = {"threshold"} if name in TWINS and not method.separable else set()
        other |= {key for key, value in method.defaults.items() if changed.get(key) == value}
        assert set(changed) <= CHANGES[name.removeprefix("lab-")] | other, row.name


def test_rows_do_what_their_names_say():
    def configs(name):
        return {row.name: row.config for row in load_spec(name).rows}

    for name in ("elbo-steps", "more-elbo-steps", "lab-more-elbo-steps"):
        for row, config in configs(name).items():
            assert config.elbo_count == int(row.split()[0])
    for name in ("strategies", "lab-strategies"):
        for row, config in configs(name).items():
            assert (config.elbo_strategy, config.elbo_count) == (row, 10)
    for name in ("collecting", "lab-collecting"):
        own = {"collect_range": (0.3, 0.5)}
        for row, config in configs(name).items():
            count, strategy = row.split()
            config = config.resolved(settings=own)  # a model's own range must not step in
            assert config.collect_range is None
            assert (config.collect_strategy, config.collect_count) == (strategy, int(count))
            assert config.elbo_count == 10
    assert STRATEGIES["small"] == (0, 0.2)
    assert STRATEGIES["middle"] == (0.4, 0.6)
    assert STRATEGIES["large"] == (0.7, 0.9)
    for name in ("gamma", "lab-gamma"):
        gammas = [config.gamma for config in configs(name).values()]
        assert gammas == [1 / n for n in range(1, 9)]
    for name in ("fixed-scores", "lab-fixed-scores"):
        rows = load_spec(name).rows
        assert [row.scores for row in rows] == [1 / 2, 1 / 3, 1 / 4, None]
        own = {"centred": True, "gamma": 0.6}  # centred, a shared score would do nothing
        assert not any(row.config.resolved(settings=own).centred for row in rows)
        assert rows[-1].config.resolved(settings=own).gamma == 1 / 3
    for name in ("models", "lab-models", "frequency", "toy"):
        assert [config.calibrate for config in configs(name).values()] == ["none", "elbo"]
    texts = [config.elbo_text for config in configs("phrases").values() if config.measured]
    assert texts == ["name", "phrase"]


def test_the_study_has_every_control_at_both_strengths():
    rows = {row.name: row for row in load_spec("study-exponents").rows}
    rules = {"random order": "shuffled", "reversed order": "reversed", "inverted": "inverted",
             "best order": "best-order"}  # fmt: skip
    own = {"gamma": 0.6, "centred": True}
    for strength, expected in (("own strength", (0.6, True)), ("1/gamma = 3", (1 / 3, False))):
        assert rows[strength].exponents == "elbo"
        for name, rule in rules.items():
            row = rows[f"{strength}, {name}"]
            config = row.config.resolved(settings=own)
            assert (row.exponents, row.supervised) == (rule, rule == "best-order")
            assert (config.gamma, config.centred) == expected
    for name, row in rows.items():
        if name.startswith("constant"):
            assert 1 / row.scores == pytest.approx(float(name.split()[1]))
        elif name.startswith("1/gamma"):
            strength = float(name.split(",")[0].split()[-1])
            assert 1 / row.config.gamma == pytest.approx(strength)
            assert row.config.centred == name.endswith("centred")
    presets = {row.name: row.config for row in load_spec("study-presets").rows}
    assert presets["official"] == AlignConfig.official(calibrate="elbo")
    weighting = presets["official"].resolved("sd3").elbo_weighting
    assert weighting == "native"  # the loss that the released code takes on SD3


def test_baselines():
    rows = {row.name: row for row in load_spec("methods-calibrated").rows}
    assert rows["DAAM"].config.calibrate == "none"
    assert rows["DAAM + ELB"].config.calibrate == "elbo"
    assert rows["DAAM + ELB"].baseline == "DAAM"
    assert rows["DiffSegmenter + ELB"].baseline == "DiffSegmenter"
    for row in load_spec("sota").rows:
        assert row.config.calibrate == ("elbo" if row.method == "elbo" else "none")
        assert row.baseline == "ELBO-T2IAlign"
    lab = load_spec("lab-methods-calibrated")
    assert "Exponents are centred" in lab.notes[-2]
    both = [*lab.rows, *(row for row in load_spec("lab-sota").rows)]
    both = [row for row in both if not METHODS[row.method].separable]
    assert len(both) == 10
    own = {"threshold": {"elbo": 0.3, "daam": 0.2}}  # a model's own must not step in
    assert {row.config.resolved(settings=own).threshold for row in both} == {0.45}


def test_the_evidence_has_its_controls():
    for name in OWN:
        spec = load_spec(name)
        assert (spec.label, spec.extends, spec.paper) == ("ours", None, {})
        assert (spec.datasets, spec.split) == (("lab",), "test")
    rows = {row.name: row for row in load_spec("lab-evidence").rows}
    assert rows["paper"].config == AlignConfig.paper(calibrate="elbo")
    for name, row in rows.items():
        config = row.config.resolved()
        alike = name in ("elbo, edges", "dense", "dense, 5 timesteps")
        assert config.edges == ("guided" if alike else "none"), name
        assert row.evidence == "own"
        assert row.baseline == ("elbo, edges" if alike and row.method == "dense" else "elbo")
        assert (config.elbo_count == 5) == ("5 timesteps" in name)
        agreeing = row.method == "dense" and name != "dense, layers alike"
        assert (config.cross_weights == "agreement") == (agreeing or "agreement" in name)
        alone = name == "dense, layers by agreement alone"
        assert config.agreement_floor == (0.2 if row.method == "dense" and not alone else 0)
    rows = {row.name: row for row in load_spec("lab-evidence-controls").rows}
    rules = {"exchanged": "exchanged", "shifted": "shifted", "its own": "own-noise"}
    for name, row in rows.items():
        assert row.config.resolved().edges == "none"
        (rule,) = [rule for said, rule in rules.items() if name.endswith(said)] or ["own"]
        assert row.evidence == rule
        if name.endswith(" + evidence"):
            plain = rows[row.baseline]
            assert row.baseline == name.removesuffix(" + evidence")
            assert (row.method, row.options) == (plain.method, plain.options)
            assert (row.config.calibrate, plain.config.calibrate) == ("evidence", "none")
    for row in load_spec("lab-evidence-steps").rows:
        assert row.config.resolved().edges == "none"
        method, _, count = row.name.partition(", ")
        if count:
            assert (row.method, row.config.elbo_count) == (method, int(count))


def test_paper_numbers():
    paper = load_spec("lab-models").paper
    assert paper["SD2.1", "uncalibrated", "voc"] == 67.6
    difference = paper["SD1.5", "calibrated", "ade20k"] - paper["SD1.5", "uncalibrated", "ade20k"]
    assert difference == pytest.approx(3.51)
    assert ("SD3", "calibrated", "voc") not in paper
    paper = load_spec("frequency").paper
    assert paper["SD1.5", "calibrated", "coco", "rare"] == 33.63
    difference = 33.63 - paper["SD1.5", "uncalibrated", "coco", "rare"]
    assert difference == pytest.approx(2.24)
