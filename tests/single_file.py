"""A tiny Stable Diffusion 1 pipeline as one file, under the names of the original release."""

import re

RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
OUTSIDE = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}


def _unet_key(key, layers, levels, attends):
    """A diffusers key of a UNet, by the numbers of the original's flat lists of blocks."""
    for new, old in OUTSIDE.items():
        if key.startswith(f"{new}."):
            return key.replace(new, old, 1)
    side, level, kind, index, rest = re.fullmatch(
        r"(down_blocks|up_blocks|mid_block)\.?(\d*)\.(\w+)\.(\d+)\.(.*)", key
    ).groups()
    index = int(index)
    if kind == "resnets":
        name, _, end = rest.partition(".")
        rest = f"{RESNET[name]}.{end}"
    if side == "mid_block":
        return f"middle_block.{1 if kind == 'attentions' else 2 * index}.{rest}"
    level = int(level)
    if side == "down_blocks":
        if kind == "downsamplers":
            return f"input_blocks.{(layers + 1) * (level + 1)}.0.{rest.replace('conv', 'op')}"
        block = (layers + 1) * level + index + 1
        return f"input_blocks.{block}.{int(kind == 'attentions')}.{rest}"
    if kind == "upsamplers":
        block = (layers + 1) * level + layers
        return f"output_blocks.{block}.{2 if attends(level) else 1}.{rest}"
    return f"output_blocks.{(layers + 1) * level + index}.{int(kind == 'attentions')}.{rest}"


def _vae_key(key, levels):
    key = key.replace("mid_block.attentions.0", "mid.attn_1").replace("conv_norm_out", "norm_out")
    for new, old in (("to_out.0", "proj_out"), ("group_norm", "norm")):
        key = key.replace(new, old)
    key = re.sub(r"attn_1\.to_([qkv])", r"attn_1.\1", key)
    key = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", key)
    key = re.sub(r"down_blocks\.(\d)\.resnets\.", r"down.\1.block.", key)
    key = re.sub(r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample", key)
    key = re.sub(
        r"up_blocks\.(\d)\.resnets\.", lambda m: f"up.{levels - 1 - int(m[1])}.block.", key
    )
    key = re.sub(
        r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"up.{levels - 1 - int(m[1])}.upsample", key
    )
    return key.replace("conv_shortcut", "nin_shortcut")


def original_state(pipe):
    """{name: tensor} of the UNet, the VAE and CLIP's text model."""
    unet, vae = pipe.unet, pipe.vae
    layers, levels = unet.config.layers_per_block, len(unet.config.block_out_channels)

    def attends(level):
        return "CrossAttn" in unet.config.up_block_types[level]

    state = {}
    for key, value in unet.state_dict().items():
        state["model.diffusion_model." + _unet_key(key, layers, levels, attends)] = value
    for key, value in vae.state_dict().items():
        name = _vae_key(key, len(vae.config.block_out_channels))
        conv = "attn_1" in name and value.ndim == 2
        state["first_stage_model." + name] = value[:, :, None, None] if conv else value
    for key, value in pipe.text_encoder.state_dict().items():
        name = key if key.startswith("text_model.") else f"text_model.{key}"
        state["cond_stage_model.transformer." + name] = value
    return {key: value.contiguous() for key, value in state.items()}
