"""``pixalign serve``, which refuses what it must before it listens."""

import pytest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "say for which tool; allowed: --label-studio"),
        (("--label-studio", "--host", "0.0.0.0"), "can be reached from other machines"),
        (("--label-studio", "--token", "short"), "token has 5 characters"),
        (("--label-studio", "--root", "none"), "'none' is no folder"),
        (("--label-studio", "--host", "192.0.2.1", "--token", "x" * 16), "host '192.0.2.1'"),
        (("--label-studio", "--method", "ovam-optimized"), "'ovam-optimized' is not one of"),
        (("--label-studio", "--model", "lab:none"), "'lab:none'; allowed: 'lab:sd1'"),
    ],
)
def test_bad_options(shell, options, said):
    code, out, error = shell("serve", *options)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
