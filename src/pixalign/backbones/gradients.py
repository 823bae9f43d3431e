"""Gradients through a frozen network, which is left exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_FLAG, _FUNCTION = "gradient_checkpointing", "_gradient_checkpointing_func"


@contextmanager
def gradients_to_inputs(network: Any, *, checkpointing: bool) -> Iterator[None]:
    """Inside the block gradients flow to the network's inputs, none to its weights.

    They do so also where the caller has switched gradients off. With ``checkpointing`` what a
    block of layers computes is computed again on the way back, which takes a third more time and
    less memory; without it, hooks see each layer once. Weights and modules get their flags back.
    """
    with ExitStack() as undo:
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        for weight in network.parameters():
            undo.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(False)
        for module in network.modules():
            if hasattr(module, _FLAG):
                for name in (_FLAG, _FUNCTION):
                    if name in vars(module):
                        undo.callback(setattr, module, name, vars(module)[name])
                    else:
                        undo.callback(vars(module).pop, name, None)
                setattr(module, _FLAG, False)
        if checkpointing:
            network.enable_gradient_checkpointing()
        yield
