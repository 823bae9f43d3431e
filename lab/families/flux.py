"""The family of double and single streams: flux, whose words T5 reads one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTextModel, T5Config, T5EncoderModel

from lab.families.base import DENOISER, Family, Parts, load_whole
from lab.families.towers import WORDS, named_tensor, normalised_words
from lab.networks import load_pipeline, text_config
from lab.recipe import Recipe
from pixalign.backbones.locations import EMBEDDED
from pixalign.core.values import TextCondition

_GATES = ("norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear")


class Flux(Family):
    """Like FLUX.1 schnell, not distilled: packed latents, rotary positions, T5 and pooled CLIP.

    T5 has no layers here, so that words are read alone; CLIP is sd1's encoder, as it is.
    """

    name = "flux"
    recipe: ClassVar[Recipe] = {"timesteps": "half", "timestep_mean": 0.0}

    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """A transformer over 2 x 2 patches of latents, of any size."""
        settings, hidden = recipe["streams"], recipe["text"]["hidden"]
        width, place = settings["head_width"], settings["head_width"] // 8
        words = T5Config(
            vocab_size=len(tokenizer), d_model=hidden, d_kv=8, d_ff=8, num_layers=0, num_heads=1,
            dropout_rate=0.0, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        transformer = FluxTransformer2DModel(
            in_channels=4 * vae.config.latent_channels,
            num_layers=settings["double"],
            num_single_layers=settings["single"],
            attention_head_dim=width,
            num_attention_heads=settings["heads"],
            joint_attention_dim=hidden,
            pooled_projection_dim=hidden,
            axes_dims_rope=(2 * place, 3 * place, 3 * place),
        )
        _close_gates(transformer)
        clip = CLIPTextModel(text_config(recipe["text"], tokenizer)).requires_grad_(False)
        parts = {"text_encoder": clip, "text_encoder_2": T5EncoderModel(words)}
        return nn.ModuleDict({**parts, DENOISER: transformer})

    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """T5's states, and CLIP's pooled vector."""
        pooled = parts["text_encoder"](ids).pooler_output
        return TextCondition(parts["text_encoder_2"](ids)[0], pooled)

    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """A FluxPipeline; of a prompt it reads as much as the tokenizer does."""
        return FluxPipeline(
            transformer=parts[DENOISER],
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
            vae=vae,
            text_encoder=parts["text_encoder"],
            tokenizer=tokenizer,
            text_encoder_2=parts["text_encoder_2"],
            tokenizer_2=tokenizer,
        )

    @torch.no_grad()
    def inherit(self, parts: Parts, donor: Any) -> None:
        """Words of a donor: of sd1's encoder as it normalises them, or of sd3's towers, and with
        those sd3's streams. CLIP is sd1's in any case."""
        words, scale = named_tensor(parts["text_encoder_2"], "shared.weight"), 1.0
        clip = donor.text_encoder
        if hasattr(donor, "transformer"):
            clip = load_pipeline(EMBEDDED, words.device.type).text_encoder
            towers = (donor.text_encoder, donor.text_encoder_2)
            given = torch.cat([named_tensor(tower, WORDS) for tower in towers], dim=1)
            scale = float(given.square().mean(1).sqrt().mean())
            _inherit_streams(parts[DENOISER], donor.transformer)
        else:
            given = normalised_words(clip)
        words.copy_(given)
        named_tensor(parts["text_encoder_2"], "final_layer_norm.weight").fill_(scale)
        load_whole(parts["text_encoder"], clip, "text_encoder")


def _inherit_streams(transformer: Any, donor: Any) -> None:
    """sd3's middle blocks become double streams, its last one's image stream the single ones.

    A single stream computes at once what a block does in two steps, so that begins near the donor,
    not as it. Places, which sd3 adds to the patches, are left for rotations to learn.
    """
    given = donor.state_dict()
    double, single = transformer.config.num_layers, transformer.config.num_single_layers
    last = donor.config.num_layers - 1
    if double > last:
        raise ValueError(f"{double} double streams are more than the donor's {last} whole blocks")
    taken = {
        name.replace(f"blocks.{last - double + i}.", f"blocks.{i}."): tensor
        for i in range(double)
        for name, tensor in given.items()
        if f"blocks.{last - double + i}." in name
    }
    taken |= {name: x for name, x in given.items() if "blocks." not in name}
    taken["x_embedder.weight"] = given["pos_embed.proj.weight"].flatten(1)
    taken["x_embedder.bias"] = given["pos_embed.proj.bias"]
    for end in ("weight", "bias"):
        # Of a patch sd3 writes (row, column, channel), FLUX the channel first.
        patch = given[f"proj_out.{end}"].unflatten(0, (2, 2, -1))
        taken[f"proj_out.{end}"] = patch.movedim(2, 0).flatten(0, 2)
    end_block = {
        n.split(f"blocks.{last}.")[1]: x for n, x in given.items() if f"blocks.{last}." in n
    }
    for index in range(single):
        taken |= {
            f"single_transformer_blocks.{index}.{name}": x
            for name, x in _as_single(end_block, single).items()
        }
    own = transformer.state_dict()
    fitting = {k: x.to(own[k]) for k, x in taken.items() if k in own and own[k].shape == x.shape}
    transformer.load_state_dict(fitting, strict=False)


def _as_single(block: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The image stream of sd3's block as one of ``count`` single streams that share its work."""
    single = {name: x for name, x in block.items() if name.startswith(("attn.to_", "attn.norm_"))}
    for end in ("weight", "bias"):
        shift, scale, gate = block[f"norm1.linear.{end}"].chunk(6)[:3]
        single[f"norm.linear.{end}"] = torch.cat([shift, scale, gate / count])
        single[f"proj_mlp.{end}"] = block[f"ff.net.0.proj.{end}"]
    outputs = [block["attn.to_out.0.weight"], block["ff.net.2.weight"]]
    single["proj_out.weight"] = torch.cat(outputs, dim=1)
    single["proj_out.bias"] = block["attn.to_out.0.bias"] + block["ff.net.2.bias"]
    return single


def _close_gates(transformer: Any) -> None:
    """Blocks that change nothing at first, and an output of zero: training begins calmly."""
    for name, module in transformer.named_modules():
        if name.endswith(_GATES) or name == "proj_out":
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
