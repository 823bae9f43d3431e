"""The command as a whole: what it lists, and how it ends."""

import os
import subprocess
import sys

import pytest

import pixalign as pa
from pixalign import cli
from pixalign.__main__ import main


def test_help_and_version(shell):
    code, out, _ = shell("--help")
    assert code == 0
    for command, entry in cli.COMMANDS.items():
        assert f" {command} " in out
        assert entry.about in out
    assert shell("--version") == (0, f"pixalign {pa.__version__}\n", "")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(shell, name):
    code, out, _ = shell(name, "--help")
    assert code == 0
    assert f"pixalign {name} " in out
    for parameter in cli.loaded_command(name).params:
        assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["sgment"]])
def test_the_command_line_answers_without_torch(arguments):
    code = (
        "import sys; from pixalign.__main__ import main\n"
        "try: main()\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert "AssertionError" not in done.stderr
    assert done.returncode == (2 if arguments == ["sgment"] else 0)


def test_completion_lists_commands():
    asked = {"_PIXALIGN_COMPLETE": "complete_bash", "COMP_WORDS": "pixalign s", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['pixalign']; from pixalign.__main__ import main; main()"
    run = {"capture_output": True, "text": True, "env": os.environ | asked}
    done = subprocess.run([sys.executable, "-c", code], **run)
    assert done.stdout.split() == ["segment", "serve", "scenes"]


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_a_stop_while_loading_is_one_line(module, tmp_path):
    """Ctrl-C in the first moments, while modules are imported."""
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = {"capture_output": True, "text": True, "env": os.environ | {"PYTHONPATH": path}}
    done = subprocess.run([sys.executable, "-m", "pixalign", "doctor"], **run)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


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
        (("segment",), "pixalign: Missing argument 'IMG... CLASS...'.\n"),
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
        main()


def test_a_stopped_command_says_so(shell, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pixalign.scenes.write.write_scenes", stop)
    assert shell("scenes", "--out", "x") == (130, "", "stopped\n")
