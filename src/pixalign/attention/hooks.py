"""How readers and writers are told of a network's passes; nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pixalign.core.values import Size


@contextmanager
def watched(denoiser: nn.Module, start: Callable[[Size], None]) -> Iterator[ExitStack]:
    """Inside the block, ``start`` is told the latent's (height, width) as each pass begins.

    What is given to the stack (``callback``) is called after the block, come what may. A compiled
    network runs uncompiled meanwhile, because compiled code does not see hooks.
    """

    def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        height, width = network_input(args, kwargs).shape[-2:]
        start((height, width))

    with ExitStack() as hooks:
        if _is_compiled(denoiser):
            hooks.enter_context(torch.compiler.set_stance("force_eager"))
        handle = denoiser.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
        hooks.callback(handle.remove)
        yield hooks


def network_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The latents [B, C, h, w] that a UNet or a transformer was called with."""
    name = "sample" if "sample" in kwargs else "hidden_states"
    latents: Tensor = args[0] if args else kwargs[name]
    return latents


class LayerInputs(NamedTuple):
    """Hidden states, text and mask with which an attention layer is called."""

    hidden: Tensor
    text: Tensor | None
    mask: Tensor | None

    def rows(self, rows: Tensor | slice) -> LayerInputs:
        """Some rows of the batch."""
        text, mask = (None if part is None else part[rows] for part in (self.text, self.mask))
        return LayerInputs(self.hidden[rows], text, mask)


def layer_inputs(
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | tuple[Tensor, ...] | None = None,
    attention_mask: Tensor | None = None,
    **_: object,
) -> LayerInputs:
    """The arguments of an attention layer of diffusers."""
    if isinstance(encoder_hidden_states, tuple):  # (text, image prompts) of an adapter
        encoder_hidden_states = encoder_hidden_states[0]
    return LayerInputs(hidden_states, encoder_hidden_states, attention_mask)


class _Reached(Exception):
    """The pass has come to the layer at which it ends."""


def run_until(module: nn.Module, call: Callable[[], object]) -> None:
    """Call the network, and end its pass at ``module``: neither that nor what follows is run.

    A reader that was attached before has then seen the input of ``module``: all that it needs.
    """

    def stop(*_: object) -> None:
        raise _Reached

    handle = module.register_forward_pre_hook(stop)
    try:
        with suppress(_Reached):
            call()
    finally:
        handle.remove()


def _is_compiled(network: nn.Module) -> bool:
    return hasattr(network, "_orig_mod") or any(
        module._compiled_call_impl is not None for module in network.modules()
    )
