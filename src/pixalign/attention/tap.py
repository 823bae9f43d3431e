"""Standing where queries, keys and values are final: after norms, rotations, fused projections.

Nothing is replaced. A thread-local mode of torch sees every call of scaled_dot_product_attention,
hooks say which layer is running, and what the network computes is left as it is, but for rows that
a listener writes. (A compiled network runs uncompiled meanwhile, and differs by rounding.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from pixalign.attention import reprojection
from pixalign.attention.compiled import CompiledNetwork
from pixalign.attention.sites import Site
from pixalign.core.protocols import TappedNetwork
from pixalign.core.values import AttentionCall, NetworkCall, Size

# (layer, what the picture's positions compute there, the layer's grid) to None, or to rows of the
# batch int64 [n] and their new attention output [n, heads, h*w, d]. A joint layer's keys are the
# picture's and then the text's.
Listener = Callable[[Site, AttentionCall, Size], tuple[Tensor, Tensor] | None]


class LayersUnheardError(RuntimeError):
    """Compiled code does not show the attention of some layers."""


@contextmanager
def tapped(
    network: TappedNetwork,
    sites: Sequence[Site],
    listener: Listener,
    begin: Callable[[], None] | None = None,
    compiled: CompiledNetwork | None = None,
) -> Iterator[None]:
    """Inside the block the listener hears each of these layers, in this thread's passes, once.

    ``begin`` is told that a pass begins. A layer that attends more than once in a pass, as with
    image prompts, is heard at its first call, which is the text's. One that is not heard at all is
    an error. With ``compiled`` its passes are heard, and nothing can be written.
    """
    tap = _Tap(network, listener, begin)
    if compiled is not None:
        with compiled.telling(_CompiledTap(tap, network, sites)):
            yield
        return
    with ExitStack() as undo:
        if _is_compiled(network.denoiser):
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        first: Any = {"prepend": True, "with_kwargs": True}
        hooks = [network.denoiser.register_forward_pre_hook(tap.begin, **first)]
        for site in sites:
            hooks += [
                site.module.register_forward_pre_hook(partial(tap.enter, site), with_kwargs=True),
                site.module.register_forward_hook(tap.leave, with_kwargs=True, always_call=True),
            ]
        for handle in hooks:
            undo.callback(handle.remove)
        undo.enter_context(_backends_heard(tap, network.attention_backends()))
        undo.enter_context(tap)
        yield


class _Tap(TorchFunctionMode):
    """Hears the layer that is running."""

    def __init__(
        self, network: TappedNetwork, listener: Listener, begin: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self.network, self.listener, self.told = network, listener, begin
        self.thread = threading.get_ident()
        self.call: NetworkCall | None = None
        self.site: Site | None = None  # that is running and was not heard yet

    def begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A pass of the network begins."""
        if threading.get_ident() == self.thread:
            self.site, self.call = None, self.network.describe_call(args, kwargs)
            if self.told is not None:
                self.told()

    def enter(self, site: Site, *_: object) -> None:
        """A layer begins."""
        if threading.get_ident() == self.thread:
            self.site = site

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """A layer ends; if it was not heard, its inputs say what it computed."""
        site, mine = self.site, threading.get_ident() == self.thread
        if not mine or site is None or output is None:  # without an output, it has failed
            self.site = None if mine else site
            return None
        self.site = None
        inputs = reprojection.layer_inputs(*args, **kwargs)
        reprojection.check_known(module)
        written = self._listen(site, reprojection.attention_call(module, inputs))
        return None if written is None else reprojection.written(module, inputs, output, *written)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Every function of torch in this thread passes here."""
        output = func(*args, **(kwargs or {}))
        if func is scaled_dot_product_attention and self.site is not None:
            return self.heard(output, AttentionCall.of(*args, **(kwargs or {})))
        return output

    def heard(self, output: Tensor, call: AttentionCall) -> Tensor:
        """The output [B, heads, Q, d] of the running layer, with what the listener writes."""
        site, self.site = self.site, None
        assert site is not None
        written = self._listen(site, call)
        if written is None:
            return output
        rows, new = written
        order = self.call.order if self.call and site.kind == "joint" else None
        output = output.clone()  # keeps the memory's layout, by which later layers round
        for row, image in zip(rows.tolist(), new.to(output.dtype), strict=True):
            own = order if order is None or order.ndim == 1 else order[row]
            places = slice(image.shape[1]) if own is None else own[: image.shape[1]]
            output[row, :, places] = image
        return output

    def _listen(self, site: Site, call: AttentionCall) -> tuple[Tensor, Tensor] | None:
        if self.call is None:
            raise RuntimeError("a layer was run outside of its network")
        grid = site.grid(self.call.latent)
        if site.kind == "joint":
            call = call.of_picture(self.call.order, grid[0] * grid[1])
        return self.listener(site, call, grid)


class _CompiledTap:
    """Hears the layers of compiled code."""

    def __init__(self, tap: _Tap, network: TappedNetwork, sites: Sequence[Site]) -> None:
        names = {module: name for name, module in network.denoiser.named_modules()}
        self.tap, self.sites = tap, {names[site.module]: site for site in sites}
        self.awaited: set[str] = set()
        self.rows = 0

    def begin(self, inputs: dict[str, Any], rows: int) -> None:
        """A pass begins, of so many rows that count."""
        self.awaited, self.rows = set(self.sites), rows
        self.tap.begin(self.tap.network.denoiser, (), inputs)

    def heard(self, layer: str, call: AttentionCall) -> None:
        """A layer has attended."""
        if layer in self.awaited:
            self.awaited.remove(layer)
            self.tap._listen(self.sites[layer], call.rows(slice(self.rows)))

    def end(self) -> None:
        """A pass has ended."""
        if self.awaited:
            raise LayersUnheardError(f"compiled code does not show {sorted(self.awaited)}")


# ---- attention backends that do without scaled_dot_product_attention ----

_BACKENDS = threading.Lock()
_TAPS = threading.local()  # .stack: this thread's taps, the last one innermost
_originals: dict[Any, Any] = {}  # while any tap is open
_open = 0


@contextmanager
def _backends_heard(tap: _Tap, table: MutableMapping[Any, Any]) -> Iterator[None]:
    """Let a tap hear the backends of a table too, which is put back by the last tap."""
    global _open
    stack = _TAPS.__dict__.setdefault("stack", [])
    with _BACKENDS:
        if not _open:
            _originals.update(table)
            table.update({name: _through_taps(backend) for name, backend in table.items()})
        _open += 1
    stack.append(tap)
    try:
        yield
    finally:
        stack.remove(tap)
        with _BACKENDS:
            _open -= 1
            if not _open:
                table.update(_originals)
                _originals.clear()


def _through_taps(backend: Callable[..., Any]) -> Callable[..., Any]:
    """A backend, [B, tokens, heads, d] in and out, that tells this thread's taps."""

    @wraps(backend)
    def told(*args: Any, **kwargs: Any) -> Any:
        output = backend(*args, **kwargs)
        taps = [tap for tap in getattr(_TAPS, "stack", ()) if tap.site is not None]
        if taps:
            call = AttentionCall.of_backend(*args, **kwargs)
            for tap in taps:
                output = tap.heard(output.transpose(1, 2), call).transpose(1, 2)
        return output

    return told


# ---- passes ----


class _Reached(Exception):
    """The pass has come to the end of the last layer that is needed."""


def run_through(module: nn.Module, call: Callable[[], object]) -> None:
    """Call the network, and end its pass behind ``module``: what follows is not run."""

    def stop(*_: object) -> None:
        raise _Reached

    handle = module.register_forward_hook(stop)
    try:
        with suppress(_Reached):
            call()
    finally:
        handle.remove()


def _is_compiled(network: nn.Module) -> bool:
    return hasattr(network, "_orig_mod") or any(
        module._compiled_call_impl is not None for module in network.modules()
    )
