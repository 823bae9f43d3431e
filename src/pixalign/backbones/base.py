"""What every family offers, and what they share."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.attention import Site
from pixalign.attention.compiled import CompiledNetwork
from pixalign.backbones.distilled import signs_of_distillation
from pixalign.backbones.latents import LatentCodec
from pixalign.backbones.texts import TextReader
from pixalign.backbones.weights import kept_as_int8
from pixalign.core.checks import check_finite
from pixalign.core.values import NetworkCall, Size, TextCondition
from pixalign.diffusion.objectives import OBJECTIVES
from pixalign.diffusion.schedule import SamplingPath, Schedule, Steps
from pixalign.text.streams import TextStream

_NATIVE = 1024  # pixels of a side, of models that do not say so


class Backbone(LatentCodec, TextReader, ABC):
    """A frozen text-to-image pipeline, seen as one function: how well does this text explain it?

    The pipeline is only read: nothing in it is moved, cast or replaced.
    """

    family: ClassVar[str]
    description: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]  # hub ids
    network: ClassVar[str]  # the pipeline's part that is asked, "unet" or "transformer"
    arguments: ClassVar[tuple[str, ...]] = ()  # names of those that pipelines give by place
    text_argument: ClassVar[str] = "encoder_hidden_states"
    time_argument: ClassVar[str] = "timestep"
    half_dtype: ClassVar[torch.dtype] = torch.float16  # what the family is run in on a GPU
    guidance: ClassVar[float] = 7.5  # with which the family's pictures are usually made

    def __init__(self, pipe: Any, name: str = "") -> None:
        """``name`` is what the pipeline was loaded by."""
        LatentCodec.__init__(self, pipe)
        TextReader.__init__(self)
        self.name = name
        self._placed: Any = None  # `_whereabouts`, and of which state
        self.lock = threading.RLock()  # held while something is asked of the pipeline
        self.sites: tuple[Site, ...] = self._sites()
        self.compiled_code: CompiledNetwork | None = None

    @classmethod
    @abstractmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """Whether a pipeline of these components ({name: class name}) is of this family."""

    @property
    @abstractmethod
    def size_multiple(self) -> int:
        """Sides of an input image are multiples of this many pixels."""

    @property
    @abstractmethod
    def objective(self) -> str:
        """What the network estimates, a key of `pixalign.diffusion.objectives.OBJECTIVES`."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The noise schedule the network was trained with."""

    @abstractmethod
    def _sites(self) -> tuple[Site, ...]: ...

    @abstractmethod
    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        """With what the network is called for z [B, C, h, w] at times [B]."""

    @property
    def denoiser(self) -> Any:
        """The network that is asked."""
        return getattr(self.pipe, self.network)

    @property
    def device(self) -> torch.device:
        """Where the pipeline computes, also when its parts are offloaded meanwhile."""
        return self._whereabouts()[0]

    @property
    def dtype(self) -> torch.dtype:
        """The number type the network computes in."""
        return self._whereabouts()[1]

    def _whereabouts(self) -> tuple[torch.device, torch.dtype]:
        """Device and number type; diffusers, who walks through all modules, is asked on changes."""
        network = self.denoiser
        first = next(network.parameters())
        hooks = [getattr(network, name, None) for name in ("_hf_hook", "_diffusers_hook")]
        hooks.append(getattr(self.pipe, "_all_hooks", None) or None)
        state = self.pipe, network, first.device, first.dtype, *hooks
        if self._placed is None or self._placed[0] != state:
            self._placed = state, (super().device, network.dtype)
        placed: tuple[torch.device, torch.dtype] = self._placed[1]
        return placed

    @property
    def distilled(self) -> str | None:
        """What says that the network was distilled to answer as if guided, if anything does.

        One that is told its guidance is not meant: it is told none where it is measured.
        """
        return next(signs_of_distillation(self.pipe, self.denoiser, self.name), None)

    def record(self) -> dict[str, str]:
        """What results say of the model."""
        kept = {"weights_dtype": "int8"} if kept_as_int8(self.denoiser) else {}
        return {
            "family": self.family,
            "objective": self.objective,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            **kept,
        }

    @property
    def native_size(self) -> Size:
        """(height, width) in pixels that the network was trained at."""
        factor, size = int(self.pipe.vae_scale_factor), self.denoiser.config.get("sample_size")
        if size is None:  # the VAE is known to say something else beside networks that do
            factor, size = 1, self.pipe.vae.config.get("sample_size") or _NATIVE
        height, width = (size, size) if isinstance(size, int) else size
        return height * factor, width * factor

    @property
    def latent_channels(self) -> int:
        """Channels of the latents that the VAE makes."""
        return int(self.pipe.vae.config.latent_channels)

    @property
    def input_channels(self) -> int:
        """Channels of the latents that the network takes."""
        return int(self.denoiser.config.in_channels)

    @property
    def largest_side(self) -> int:
        """The longest side, in pixels, that the network accepts."""
        return 8 * max(self.native_size)

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        """(channels, height, width) of the latents of a picture of that (height, width)."""
        return self.latent_channels, size[0] // self.vae_factor, size[1] // self.vae_factor

    def check_alignable(self) -> None:
        """Refuse pipelines that lack a part, or need more than a noised latent and a text."""
        for part in ("vae", "text_encoder", "text_encoder_2", "scheduler"):
            if getattr(self.pipe, part, self) is None:
                raise ValueError(f"the pipeline's {part} is missing; aligning needs it")
        if getattr(self.pipe, "controlnet", None) is not None:
            raise ValueError(
                "a ControlNet steers this pipeline; align its base model, loaded without one"
            )
        # diffusers keeps what an adapter says beside the configuration's entries.
        if getattr(self.denoiser.config, "encoder_hid_dim_type", None) not in (None, "text_proj"):
            raise ValueError(
                "an image prompt adapter is loaded; call pipe.unload_ip_adapter() before aligning"
            )
        if getattr(self.denoiser, "is_cache_enabled", False):
            raise ValueError(
                f"a cache of steps leaves layers out; call pipe.{self.network}.disable_cache() "
                "before aligning"
            )
        wanted, has = self.input_channels, self.latent_channels
        if wanted != has:
            raise ValueError(
                f"this {self.family} network takes {wanted} input channels, its VAE makes {has}: "
                "inpainting and editing networks cannot be aligned, use the base model"
            )

    @property
    def tells_guidance(self) -> bool:
        """Whether the network is told how strongly to guide, and answers so in one pass."""
        config = self.denoiser.config
        return bool(config.get("guidance_embeds") or config.get("time_cond_proj_dim"))

    def told(self, text: TextCondition, guidance: float) -> TextCondition:
        """The prompts, with the guidance that such a network is told beside them."""
        if not self.tells_guidance:
            return text
        column = torch.full((len(text), 1), guidance, device=text.embeds.device)
        return replace(text, extra={**text.extra, "guidance": column})

    def guidance_told(self, text: TextCondition) -> Tensor | None:
        """float32 [P]: what `told` has put beside prompts; None for other networks."""
        column = text.extra.get("guidance")
        return None if column is None else column[:, 0].float()

    def check_encoding(self, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
        """Refuse a pipeline's own encoding, by its arguments, that `columns` does not count in."""
        return  # most families have nothing to refuse

    def call_streams(self, length: int) -> tuple[TextStream, ...]:
        """The streams as they fill so many columns in a call of the pipeline itself."""
        return self.streams

    def describe_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NetworkCall:
        """What a call of the network, ours or a pipeline's, has to do with picture and text."""
        named = dict(zip(self.arguments, args, strict=False)) | dict(kwargs)
        latent, texts = self.call_latent(named), named[self.text_argument]
        time = float(torch.as_tensor(named[self.time_argument]).flatten()[0])
        order = self.call_order(named, latent, texts)
        order = None if order is None else order.to(self.device)
        return NetworkCall(latent, texts, time, order, self.call_frames(named))

    def text_length(self, encoded: int) -> int:
        """How many columns of text layers have, of which the pipeline encodes so many at first."""
        return encoded

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        """The latents' (height, width) in a call of the network with those arguments."""
        latents = named["sample" if "sample" in named else "hidden_states"]
        return latents.shape[-2], latents.shape[-1]

    def call_frames(self, named: Mapping[str, Any]) -> int | None:
        """`NetworkCall.frames` in a call of the network with those arguments."""
        return None

    def call_order(
        self, named: Mapping[str, Any], latent: Size, texts: Sequence[Tensor]
    ) -> Tensor | None:
        """`NetworkCall.order` in a call of the network with those arguments."""
        return self.order(latent, max(map(len, texts)))

    def order(self, latent: Size, text: int) -> Tensor | None:
        """`NetworkCall.order` of a pass with so many columns of text."""
        return None

    def path(self, steps: int, latent: Size) -> SamplingPath:
        """The way from noise to latents of that (height, width) in so many steps."""
        return self.schedule.path(steps)

    def attention_backends(self) -> MutableMapping[Any, Any]:
        """diffusers' table of functions that attend in the place of torch's."""
        from diffusers.models.attention_dispatch import _AttentionBackendRegistry

        table: MutableMapping[Any, Any] = _AttentionBackendRegistry._backends
        return table

    def compile(self, backend: Any = "inductor") -> None:
        """Let `epsilon` run a compiled copy of the network's code; its weights stay shared.

        Each shape of latents is compiled when it is first met, for batches of all sizes.
        """
        self.compiled_code = CompiledNetwork(self.denoiser, backend)

    @property
    def compiled(self) -> bool:
        """Whether `epsilon` runs compiled code."""
        return self.compiled_code is not None

    def output(
        self, z: Tensor, steps: Steps, text: TextCondition, compiled: bool = False
    ) -> Tensor:
        """The network's output at noised latents [B, C, h, w], steps [B], texts [B]: float32.

        Gradients flow to the latents and the texts where they are asked for. Compiled code is made
        for two rows or more: a single one is doubled.
        """
        time, rows = steps.time.float().to(z.device), len(z)
        if not compiled:
            return self.forward(self.denoiser, z.to(self.dtype), time, text).float()
        assert self.compiled_code is not None
        if rows == 1:
            z, time, text = z.repeat(2, 1, 1, 1), time.repeat(2), text.repeated(2)
        code = self.compiled_code

        def run(**inputs: Any) -> Any:
            return code(inputs, rows)

        return self.forward(run, z.to(self.dtype), time, text).float()[:rows]

    def forward(self, network: Any, z: Tensor, time: Tensor, text: TextCondition) -> Tensor:
        """What the network, or a compiled copy of it, makes of z [B, C, h, w] at times [B]."""
        return self._output(network(**self._inputs(z, time, text), return_dict=False)[0], z)

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """What the network has returned for z, as [B, C, h, w]."""
        tensor: Tensor = output
        return tensor

    @torch.no_grad()
    def predict(
        self, z: Tensor, steps: Steps, text: TextCondition, compiled: bool | None = None
    ) -> Tensor:
        """`output` without gradients; of compiled code also while somebody listens to that."""
        if compiled is None:
            compiled = self.compiled_code is not None and self.compiled_code.watched
        return self.output(z, steps, text, compiled)

    @torch.no_grad()
    def epsilon(self, z: Tensor, steps: Steps, text: TextCondition) -> Tensor:
        """The network's estimate of the noise in z, whatever its objective: float32 [B, ...]."""
        output = self.predict(z, steps, text, compiled=self.compiled)
        check_finite(output, f"outputs of the {self.family} network", self.dtype)
        return OBJECTIVES[self.objective].to_epsilon(output, z, steps)
