"""The command as a whole: what it lists, and how it ends."""

import sys

import pytest

import pixalign as pa
from pixalign import cli

COMMANDS = (
    "segment", "generate", "edit", "demo", "scenes", "classes", "models", "doctor", "bench",
)  # fmt: skip


def test_help_and_version(shell):
    code, out, _ = shell("--help")
    assert code == 0
    for command in COMMANDS:
        assert f" {command} " in out
    assert shell("--version") == (0, f"pixalign {pa.__version__}\n", "")


def test_choices_are_listed(shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = shell("segment", "--help")
    for text in (
        "dense|elbo|attention|likelihood|daam|ovam|diffsegmenter|diffseg|diffpng",
        "(the embedded model)",
        "default|paper|official|fast|uncalibrated", "auto|float32|float16|bfloat16",
    ):  # fmt: skip
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("segment",), "pixalign: Missing argument 'IMG'.\n"),
        (("segmnt",), "pixalign: No such command 'segmnt'."),
        (("doctor", "--loud"), "pixalign: No such option: --loud"),
        (("scenes", "--split", "holdout", "--out", "x"), "'holdout' is not one of 'train', 'val'"),
        (("bench", "check", "x", "--dataset", "imagenet"), "'imagenet' is not one of 'voc',"),
    ],
)
def test_what_the_command_line_refuses_is_one_line(shell, arguments, said):
    code, out, err = shell(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("arguments", [(), ("bench",)])
def test_nothing_asked_is_help(shell, arguments):
    code, out, err = shell(*arguments)
    assert code == 2
    assert "Usage: " in out + err


def test_traceback_on_request(monkeypatch):
    monkeypatch.setenv("PIXALIGN_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["pixalign", "segment", "missing.png", "dog"])
    with pytest.raises(FileNotFoundError):
        cli.main()


def test_a_stopped_command_says_so(shell, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pixalign.scenes.write.write_scenes", stop)
    assert shell("scenes", "--out", "x") == (130, "", "stopped\n")
