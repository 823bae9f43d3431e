"""The study of guidance that is built in: it is added exactly, and rows are as they should be."""

import re
import sys
from pathlib import Path

import torch

import tiny
from helpers import inputs
from pixalign.backbones import wrap

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import guidance


def test_guidance_is_added_exactly():
    backbone = wrap(tiny.sd1())
    z, steps, text = inputs(backbone)
    towards = backbone.epsilon(z, steps, text)
    away = backbone.epsilon(z, steps, backbone.unconditional().repeated(len(z)))
    backbone.epsilon = guidance.BuiltIn(backbone, 3.5)
    torch.testing.assert_close(backbone.epsilon(z, steps, text), 3.5 * towards - 2.5 * away)


def test_a_line_for_each_guidance(sd1_folder, capsys):
    """On one scene and random weights; attention is read without it."""
    model = str(sd1_folder)
    guidance.main(["--model", model, "--scenes", "1", "--device", "cpu", "--distilled", model])
    plain, built_in, distilled = capsys.readouterr().out.splitlines()
    assert distilled == plain.replace("guidance 1:", "distilled, answers with guidance 1.00:")
    rows = [dict(re.findall(r"(?:: |, )([a-z, ]+?) ([\d.]+)", line)) for line in (plain, built_in)]
    assert set(rows[0]) == {"attention", "elbo", "dense", "dense, error form"}
    assert plain.startswith("guidance 1: ")
    assert rows[0]["attention"] == rows[1]["attention"]
    assert rows[0].keys() == rows[1].keys()
