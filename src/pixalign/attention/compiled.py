"""A network's compiled code, in which attention can be heard.

In the graph that is compiled, each scaled_dot_product_attention of a known layer becomes an
operation that computes the same and then tells who listens in this thread. Hooks and modes of torch
need not be seen by compiled code, and nothing is compiled twice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pixalign.core.values import AttentionCall

_SHAPES = 64  # of latents and texts, for which compiled code is kept
_CONVOLUTIONS = 8  # a network of more computes them in the layout that a GPU is fastest with
_LISTENING = threading.local()  # .listener: this thread's


class CompiledListener(Protocol):
    """What is told of the passes of compiled code."""

    def begin(self, inputs: dict[str, Any], rows: int) -> None:
        """A pass begins, with those arguments; of its rows so many count."""

    def heard(self, layer: str, call: AttentionCall) -> None:
        """The layer of that name has attended."""

    def end(self) -> None:
        """The pass has ended."""


class CompiledNetwork:
    """A compiled copy of a network's code; its weights stay shared, the network is left as it is.

    One compilation serves batches of every size, so each shape of latents is compiled when it is
    first met. ``layers`` are names of modules whose attention was found in a graph.
    """

    def __init__(self, network: nn.Module, backend: Any = "inductor") -> None:
        self.layers: set[str] = set()
        self._backend = torch._dynamo.lookup_backend(backend)
        many = sum(isinstance(each, nn.Conv2d) for each in network.modules()) > _CONVOLUTIONS
        self._options = {"force_layout_optimization": True} if many else {}
        self._call = torch.compile(network, backend=self._compile, dynamic=False)

    def __call__(self, inputs: dict[str, Any], rows: int) -> Any:
        """What the network gives for a batch of two or more, of whose rows so many count."""
        for tensor in _tensors(inputs):
            if tensor.ndim:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        listener = _listener()
        if listener is not None:
            listener.begin(inputs, rows)
        # The limit is there to stop endless recompiling; our shapes are few and fixed.
        with torch._dynamo.config.patch(recompile_limit=_SHAPES):
            output = self._call(**inputs)
        if listener is not None:
            listener.end()
        return output

    @property
    def watched(self) -> bool:
        """Whether somebody listens in this thread."""
        return _listener() is not None

    @contextmanager
    def telling(self, listener: CompiledListener) -> Iterator[None]:
        """Inside the block the listener is told of this thread's passes."""
        _LISTENING.listener = listener
        try:
            yield
        finally:
            _LISTENING.listener = None

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """The backend's code for a graph whose attention can be heard."""
        for node in graph.graph.find_nodes(op="call_function", target=scaled_dot_product_attention):
            layer = _layer(node)
            arguments = _plain(node.args, node.kwargs)
            if layer is None or arguments is None:
                continue
            with graph.graph.inserting_before(node):
                told = graph.graph.call_function(_attend(), (*arguments, layer))
            told.meta = dict(node.meta)
            node.replace_all_uses_with(told)
            graph.graph.erase_node(node)
            self.layers.add(layer)
        graph.recompile()
        with torch._inductor.config.patch(self._options):
            return self._backend(graph, list(inputs))


def _listener() -> CompiledListener | None:
    """Who listens in this thread."""
    listener: CompiledListener | None = getattr(_LISTENING, "listener", None)
    return listener


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors among the arguments of a network."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _layer(node: torch.fx.Node) -> str | None:
    """The name of the module in which a node stands, as in `named_modules`."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = next(reversed(stack.values()))[0]
    path = re.sub(r"\.__dict__\['_modules'\]\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", path.removeprefix("L['self']"))
    return path.removeprefix(".")


def _plain(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Query, key, value, mask and scale of a call, unless it asks for more."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    if given.get("dropout_p") or given.get("is_causal") or given.get("enable_gqa"):
        return None
    return *(given[name] for name in names[:3]), given.get("attn_mask"), given.get("scale")


@cache
def _attend() -> Any:
    """The operation, made when it is first needed."""
    torch.library.define(
        "pixalign::attend",
        "(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale, str layer) -> Tensor",
    )

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: Any, layer: str
    ) -> Tensor:
        output = scaled_dot_product_attention(query, key, value, mask, scale=scale)
        listener = _listener()
        if listener is not None:
            listener.heard(layer, AttentionCall.of(query, key, value, mask, scale=scale))
        return output.transpose(1, 2).contiguous().transpose(1, 2)

    def shaped(
        query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: Any, layer: str
    ) -> Tensor:
        batch, heads, count, _ = query.shape
        return query.new_empty(batch, count, heads, value.shape[3]).transpose(1, 2)

    torch.library.impl("pixalign::attend", "CompositeExplicitAutograd", attend)
    torch.library.register_fake("pixalign::attend", shaped)
    return torch.ops.pixalign.attend.default
