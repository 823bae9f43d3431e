"""A slow, independent reading of METHODS.md's `official()` preset, to test the fast code against.

One class and one timestep at a time, every attention matrix materialised, plain loops, whole matrix
products, float32 on the CPU. It was written from METHODS.md sections 1, 2 and 7 alone and imports
nothing of the package; "METHODS:" in a docstring quotes the sentence that the function follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from diffusers import (
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from torch import Tensor

Pipe: TypeAlias = StableDiffusionPipeline | StableDiffusionXLPipeline | StableDiffusion3Pipeline
Grid: TypeAlias = tuple[int, int]  # (height, width)


@dataclass
class Released:
    """What `official()` returns for N classes, T ELBO timesteps and an image of (H, W)."""

    losses: Tensor  # [N, T] mean over latent elements of the squared epsilon-error
    exponents: Tensor  # [N] = 1 / S, in [1, 1 / gamma]
    heatmaps: Tensor  # [N, H, W] in [0, 1]
    flow_losses: Tensor | None = None  # [N, T] raw flow MSE; SD3 only


# ------------------------------------------------------------------------------------- attention


@dataclass
class Maps:
    """Head-mean attention of the layers, by name, summed over the forwards run so far.

    Insertion order is the order in which the network called the layers, that is, execution order
    (`named_modules` would put a UNet's up blocks before its mid block).
    """

    own: dict[str, Tensor] = field(default_factory=dict)  # image to image, [P, P]
    cross: dict[str, Tensor] = field(default_factory=dict)  # image to text, [P, L]


def _heads(x: Tensor, heads: int) -> Tensor:
    """[1, P, heads * D] to [heads, P, D]."""
    _, positions, width = x.shape
    return x[0].reshape(positions, heads, width // heads).permute(1, 0, 2)


class Recorder:
    """Attention with explicit probabilities softmax(Q K^T * scale), for UNets and for SD3.

    METHODS: "mean over heads"; "sequence order is [image; text]; the image->text block is the cross
    map, image->image the self map; SD3.5's extra image-only `attn2` is not cross-attention".
    Neither block of the joint matrix is renormalised.
    """

    def __init__(self, name: str, maps: Maps) -> None:
        self.name, self.maps = name, maps

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """hidden_states [1, P, D] (image), encoder_hidden_states [1, L, Dc] (text) or None."""
        if hidden_states.shape[0] != 1 or hidden_states.ndim != 3 or attention_mask is not None:
            raise ValueError("the reference handles one unmasked sequence at a time")
        text, image_length = encoder_hidden_states, hidden_states.shape[1]
        joint = text is not None and attn.add_q_proj is not None
        source = hidden_states if text is None or joint else text  # of the keys and values
        query = _heads(attn.to_q(hidden_states), attn.heads)
        key = _heads(attn.to_k(source), attn.heads)
        value = _heads(attn.to_v(source), attn.heads)
        query = query if attn.norm_q is None else attn.norm_q(query)
        key = key if attn.norm_k is None else attn.norm_k(key)
        if joint:
            text_query = _heads(attn.add_q_proj(text), attn.heads)
            text_key = _heads(attn.add_k_proj(text), attn.heads)
            text_value = _heads(attn.add_v_proj(text), attn.heads)
            text_query = text_query if attn.norm_added_q is None else attn.norm_added_q(text_query)
            text_key = text_key if attn.norm_added_k is None else attn.norm_added_k(text_key)
            query = torch.cat([query, text_query], dim=1)
            key = torch.cat([key, text_key], dim=1)
            value = torch.cat([value, text_value], dim=1)
        probabilities = torch.softmax(query @ key.transpose(1, 2) * attn.scale, dim=-1)
        mean = probabilities.mean(0)
        if text is None:
            self._add(self.maps.own, mean)
        elif joint:
            self._add(self.maps.own, mean[:image_length, :image_length])
            self._add(self.maps.cross, mean[:image_length, image_length:])
        else:
            self._add(self.maps.cross, mean)
        output = (probabilities @ value).permute(1, 0, 2)  # [P (+ L), heads, D]
        output = output.reshape(1, output.shape[0], -1)
        image_output = attn.to_out[1](attn.to_out[0](output[:, :image_length]))
        if attn.residual_connection:
            image_output = image_output + hidden_states
        image_output = image_output / attn.rescale_output_factor
        if not joint:
            return image_output
        text_output = output[:, image_length:]
        return image_output, text_output if attn.context_pre_only else attn.to_add_out(text_output)

    def _add(self, sums: dict[str, Tensor], mean: Tensor) -> None:
        sums[self.name] = sums[self.name] + mean if self.name in sums else mean


# ------------------------------------------------------------------------------ text and network


def _is_sd3(pipe: Pipe) -> bool:
    return isinstance(pipe, StableDiffusion3Pipeline)


def _network(pipe: Pipe) -> Any:
    return pipe.transformer if _is_sd3(pipe) else pipe.unet


def encode(pipe: Pipe, prompt: str) -> tuple[Tensor, Tensor | None]:
    """Embeddings [1, L, D] and pooled [1, P] (None on SD1/SD2); METHODS: "conditional only"."""
    if isinstance(pipe, StableDiffusionPipeline):
        return pipe.encode_prompt(prompt, pipe.device, 1, False)[0], None
    texts = {"prompt": prompt, "prompt_2": prompt} | ({"prompt_3": prompt} if _is_sd3(pipe) else {})
    embeds, _, pooled, _ = pipe.encode_prompt(**texts, do_classifier_free_guidance=False)
    return embeds, pooled


def columns(tokenizer: Any, classes: list[str]) -> list[list[int]]:
    """Text columns of each class in "a photo of c1, c2, ...", by the lengths of growing prefixes.

    Column 0 is the start token. The tokens of a class are those that its name adds to the prompt
    written so far. A prompt that does not fit is an error, for METHODS says "never truncated".
    """

    def length(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    written, found = "a photo of", []
    for name in classes:
        start = length(written)
        end = length(f"{written} {name}")
        found.append([1 + position for position in range(start, end)])
        written = f"{written} {name},"
    if not all(found) or found[-1][-1] > tokenizer.model_max_length - 2:  # last: end token
        raise ValueError(f"classes {classes} do not fit one prompt of {tokenizer.model_max_length}")
    return found


def latent(pipe: Pipe, pixels: Tensor) -> Tensor:
    """[1, C, h, w]; METHODS: "Latent = posterior mean (minus shift) x scaling factor"."""
    mean = pipe.vae.encode(pixels).latent_dist.mean
    shift = getattr(pipe.vae.config, "shift_factor", None) or 0.0
    return (mean - shift) * pipe.vae.config.scaling_factor


def schedule(pipe: Pipe, index: int) -> tuple[float, float, Tensor]:
    """alpha, sigma of z = alpha x + sigma eps, and the time [1] that the network is given.

    METHODS: "timesteps index the scheduler's **shifted** sigma table in ascending order (20..200 is
    sigma 0.06-0.43), the transformer gets 1000 sigma".
    """
    if _is_sd3(pipe):
        shift, step = float(pipe.scheduler.config.shift), (index + 1) / 1000
        sigma = shift * step / (1 + (shift - 1) * step)
        return 1 - sigma, sigma, torch.tensor([1000 * sigma], dtype=torch.float32)
    power = float(pipe.scheduler.alphas_cumprod[index])
    return math.sqrt(power), math.sqrt(1 - power), torch.tensor([index])


def predict(
    pipe: Pipe, noised: Tensor, time: Tensor, text: tuple[Tensor, Tensor | None], pixel: Grid
) -> Tensor:
    """The network's raw output [1, C, h, w]; METHODS: "SDXL ids (h, w), (0, 0), (h, w)"."""
    embeds, pooled = text
    if _is_sd3(pipe):
        return pipe.transformer(noised, embeds, pooled, time, return_dict=False)[0]
    added = None
    if isinstance(pipe, StableDiffusionXLPipeline):
        ids = torch.tensor([[*pixel, 0, 0, *pixel]], dtype=torch.float32)
        added = {"text_embeds": pooled, "time_ids": ids}
    return pipe.unet(noised, time, embeds, added_cond_kwargs=added, return_dict=False)[0]


def epsilon(pipe: Pipe, output: Tensor, noised: Tensor, alpha: float, sigma: float) -> Tensor:
    """METHODS, table of section 1: "eps-hat from the output"; all [1, C, h, w]."""
    if _is_sd3(pipe):
        return noised + alpha * output  # alpha = 1 - t
    kind = pipe.scheduler.config.prediction_type
    if kind == "epsilon":
        return output
    if kind == "v_prediction":
        return (alpha * output + sigma * noised) / (alpha**2 + sigma**2)
    raise ValueError(f"prediction type {kind!r} is not one of epsilon, v_prediction")


# ---------------------------------------------------------------------------------- algorithm 1


def minmax(x: Tensor) -> Tensor:
    """To [0, 1] over all elements; METHODS: "equal losses, constant maps: no NaN" (zeros)."""
    low, high = x.min(), x.max()
    return torch.zeros_like(x) if low == high else (x - low) / (high - low)


def grid(pipe: Pipe, positions: int, latent_size: Grid) -> Grid:
    """(height, width) of a layer from its number of positions, by its downsampling factor."""
    factors = [pipe.transformer.config.patch_size] if _is_sd3(pipe) else [2**k for k in range(8)]
    for factor in factors:
        height, width = (math.ceil(side / factor) for side in latent_size)
        if height * width == positions:
            return height, width
    raise ValueError(f"{positions} positions fit no grid of the latent size {latent_size}")


def resize(maps: Tensor, size: Grid) -> Tensor:
    """[N, h, w] to [N, *size], bilinear with align_corners=False."""
    return F.interpolate(maps[None], size=size, mode="bilinear", align_corners=False)[0]


def collect(
    pipe: Pipe, latents: Tensor, noise: Tensor, timesteps: list[int], prompt: str, pixel: Grid
) -> Maps:
    """Every layer's head-mean maps, averaged over the timesteps; noise [n, C, h, w].

    METHODS: "raw head-mean maps averaged over timesteps, then normalised". The recorders' output is
    compared with the stock processors' at every timestep, and the stock ones are put back.
    """
    network, text, sums = _network(pipe), encode(pipe, prompt), Maps()
    stock = dict(network.attn_processors)
    for index, draw in zip(timesteps, noise, strict=True):
        alpha, sigma, time = schedule(pipe, index)
        noised = alpha * latents + sigma * draw[None]
        expected = predict(pipe, noised, time, text, pixel)
        network.set_attn_processor(
            {name: Recorder(name.removesuffix(".processor"), sums) for name in stock}
        )
        try:
            output = predict(pipe, noised, time, text, pixel)
        finally:
            network.set_attn_processor(dict(stock))  # diffusers empties the dict it is given
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    return Maps(
        own={name: total / len(timesteps) for name, total in sums.own.items()},
        cross={name: total / len(timesteps) for name, total in sums.cross.items()},
    )


def layer_weights(pipe: Pipe, names: list[str], grids: list[Grid], kind: str) -> list[float]:
    """One weight for each cross layer, in execution order.

    METHODS: "a layer's weight is by the rank of its resolution, lowest first: 15, 10, 1, 1; SDXL's
    two: 15, 1" and "w_l = exp(-(l-m)^2/18), l the cross-layer index, m that of the mid layer (SD3:
    middle of the list)"; SD3 under `official()` has the Gaussian whatever `kind` says.
    """
    if kind not in ("resolution", "gaussian"):
        raise ValueError(f"cross_weights {kind!r} is not one of resolution, gaussian")
    if _is_sd3(pipe) or kind == "gaussian":
        in_mid = [i for i, name in enumerate(names) if name.startswith("mid_block")]
        middle = (len(names) - 1) / 2 if _is_sd3(pipe) else sum(in_mid) / len(in_mid)
        return [math.exp(-((i - middle) ** 2) / 18) for i in range(len(names))]
    lowest_first = sorted(set(grids))
    by_rank = {1: [1], 2: [15, 1], 3: [15, 10, 1], 4: [15, 10, 1, 1]}[len(lowest_first)]
    return [float(by_rank[lowest_first.index(size)]) for size in grids]


def cross_map(
    pipe: Pipe, layers: dict[str, Tensor], latent_size: Grid, found: list[list[int]], kind: str
) -> Tensor:
    """A, [N, h, w], at the first cross layer's resolution.

    METHODS: "Each **layer** gets its weight, and the sum is divided by the sum of weights over
    layers"; "refined at the first layer's resolution"; "CLIP columns only" (the T5 columns follow
    CLIP's, so CLIP's positions need no offset).
    """
    grids = [grid(pipe, layer.shape[0], latent_size) for layer in layers.values()]
    weights = layer_weights(pipe, list(layers), grids, kind)
    total = torch.zeros(len(found), *grids[0])
    for layer, size, weight in zip(layers.values(), grids, weights, strict=True):
        maps = []
        for positions in found:
            chosen = [layer[:, position] for position in positions]
            maps.append((sum(chosen) / len(chosen)).reshape(size))
        total = total + weight * resize(torch.stack(maps), grids[0])
    return total / sum(weights)


def self_maps(pipe: Pipe, layers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """S1 and S2, each [P, P], of the refinement S2 S1 A.

    METHODS: "S2 S1 A: S1 = mean(down64 and up64), S2 = mean(up64 only)"; SDXL "S S A" over all
    highest-resolution layers; SD3 "S S A; attn2 in the self mean".
    """
    highest = max(layer.shape[0] for layer in layers.values())
    layers = {name: layer for name, layer in layers.items() if layer.shape[0] == highest}
    if not isinstance(pipe, StableDiffusionPipeline):
        every = sum(layers.values()) / len(layers)
        return every, every
    down = [layer for name, layer in layers.items() if name.startswith("down_blocks")]
    up = [layer for name, layer in layers.items() if name.startswith("up_blocks")]
    return sum(down + up) / len(down + up), sum(up) / len(up)


@torch.no_grad()
def released(
    pipe: Pipe,
    pixels: Tensor,
    size: Grid,
    classes: list[str],
    generator: torch.Generator,
    *,
    cross_weights: str = "resolution",
    gamma: float = 1 / 3,
    elbo_timesteps: Iterable[int] = range(1, 1000, 50),
    collect_timesteps: Iterable[int] = range(20, 201, 20),
) -> Released:
    """Algorithm 1 under `official()`; pixels [1, 3, h, w] in [-1, 1] at the native size.

    METHODS: "Noise for `official()`: drawn on the CPU in float32 from the generator, first
    [n_collect, C, h, w], then [n_elbo, C, h, w]"; "One noise per timestep, shared by all classes".
    """
    elbo_steps, collect_steps = list(elbo_timesteps), list(collect_timesteps)
    latents, pixel = latent(pipe, pixels), (pixels.shape[-2], pixels.shape[-1])
    shape = latents.shape[1:]
    collect_noise = torch.randn(len(collect_steps), *shape, generator=generator)
    elbo_noise = torch.randn(len(elbo_steps), *shape, generator=generator)

    losses = torch.zeros(len(classes), len(elbo_steps))
    flow_losses = torch.zeros(len(classes), len(elbo_steps))
    for i, name in enumerate(classes):
        text = encode(pipe, f"a photo of {name}")
        for j, index in enumerate(elbo_steps):
            alpha, sigma, time = schedule(pipe, index)
            noise = elbo_noise[j : j + 1]
            noised = alpha * latents + sigma * noise
            output = predict(pipe, noised, time, text, pixel)
            losses[i, j] = (epsilon(pipe, output, noised, alpha, sigma) - noise).pow(2).mean()
            flow_losses[i, j] = (output - (noise - latents)).pow(2).mean()
    elbo = (flow_losses if _is_sd3(pipe) else losses).mean(1)
    exponents = 1 / gamma ** minmax(elbo)

    found = columns(pipe.tokenizer, classes)
    other = getattr(pipe, "tokenizer_2", pipe.tokenizer)  # both CLIPs share the columns
    if columns(other, classes) != found:
        raise ValueError("the two CLIP tokenizers place the classes differently")
    prompt = f"a photo of {', '.join(classes)}"
    layers = collect(pipe, latents, collect_noise, collect_steps, prompt, pixel)
    maps = cross_map(pipe, layers.cross, (shape[1], shape[2]), found, cross_weights)
    first, second = self_maps(pipe, layers.own)
    refine = second @ first  # [P, P]
    heatmaps = []
    for one, exponent in zip(maps, exponents, strict=True):
        calibrated = minmax(one) ** exponent
        refined = (refine @ calibrated.reshape(-1, 1)).reshape(1, *one.shape)
        heatmaps.append(minmax(resize(refined, size)[0]))
    flow = flow_losses if _is_sd3(pipe) else None
    return Released(losses, exponents, torch.stack(heatmaps), flow)
