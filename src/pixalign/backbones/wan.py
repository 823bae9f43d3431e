"""Wan: a transformer of videos whose cross-attention reads UMT5, with a VAE of videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pixalign.attention import Site
from pixalign.backbones.transformer import CROSS
from pixalign.backbones.video import VideoTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import SamplingPath
from pixalign.text.streams import TextStream

LENGTH = 512  # what the pipeline reads unless told otherwise


class Wan(VideoTransformer):
    """Wan 2.1, and Wan 2.2 with one network; from texts alone."""

    family = "wan"
    description = "Wan 2.1, and 2.2 of 5B (video; cross-attention, flow, UMT5)"
    examples = ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Wan-AI/Wan2.2-TI2V-5B-Diffusers")
    arguments = ("hidden_states", "timestep", "encoder_hidden_states")
    transformer = "WanTransformer3DModel"
    layers = {"blocks": CROSS}  # noqa: RUF012
    guidance = 5.0
    native = (480, 832)

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        found = super().recognises(components)
        if found and "transformer_2" in components:
            raise ValueError(
                "this Wan has two networks that take turns, and words would be read in one alone; "
                "use Wan 2.1, or Wan 2.2 of 5B"
            )
        return found

    @property
    def vae_factor(self) -> int:
        return int(self.pipe.vae_scale_factor_spatial)

    @property
    def latent_channels(self) -> int:
        return int(self.pipe.vae.config.z_dim)

    def check_encoding(self, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        for prompt in prompts:
            shown = prompt_clean(prompt)
            if shown != prompt:
                raise ValueError(
                    f"the pipeline cleans {prompt!r} to {shown!r}, so that its words stand "
                    "elsewhere; call it with the latter"
                )

    def _streams(self) -> tuple[TextStream, ...]:
        return (TextStream("t5", self.pipe.tokenizer, 0, LENGTH),)

    def _sites(self) -> tuple[Site, ...]:
        if self.denoiser.config.get("added_kv_proj_dim") is not None:
            raise ValueError(
                "this Wan begins with a picture, whose tokens its layers read before the words'; "
                "use one that reads texts alone"
            )
        return super()._sites()

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"max_sequence_length": LENGTH, "device": self.device}
        return TextCondition(self.pipe.encode_prompt(prompts, None, False, **how)[0])

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        if self.pipe.config.expand_timesteps:  # of each token
            time = time[:, None].expand(-1, self.tokens((z.shape[-2], z.shape[-1])))
        return {
            "hidden_states": z[:, :, None],
            "timestep": time,
            "encoder_hidden_states": text.embeds,
        }

    def _output(self, output: Any, z: Tensor) -> Tensor:
        return super()._output(output, z)[:, :, 0]

    def call_frames(self, named: Mapping[str, Any]) -> int:
        return int(named["hidden_states"].shape[2])

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        frames, height, width = named["hidden_states"].shape[2:]
        return frames * height, width

    def path(self, steps: int, latent: Size) -> SamplingPath:
        """Its scheduler's own, which may tell the network a time rounded to a whole number."""
        return self.scheduled(steps)
