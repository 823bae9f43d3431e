"""From a hub id, a folder or a loaded pipeline to a backbone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pixalign.backbones.aura_flow import AuraFlow
from pixalign.backbones.base import Backbone
from pixalign.backbones.cogview3 import CogView3Plus
from pixalign.backbones.cogview4 import CogView4
from pixalign.backbones.flux import Chroma, Flux
from pixalign.backbones.flux2 import Flux2
from pixalign.backbones.hidream import HiDream
from pixalign.backbones.hunyuan_dit import HunyuanDiT
from pixalign.backbones.kolors import Kolors
from pixalign.backbones.krea2 import Krea2
from pixalign.backbones.ltx import Ltx
from pixalign.backbones.lumina2 import Lumina2
from pixalign.backbones.missing import check_whole, refusing_missing
from pixalign.backbones.pixart import PixArt
from pixalign.backbones.playground import Playground
from pixalign.backbones.qwen_image import QwenImage
from pixalign.backbones.sana import Sana
from pixalign.backbones.sd import StableDiffusion
from pixalign.backbones.sd3 import StableDiffusion3
from pixalign.backbones.sdxl import StableDiffusionXL
from pixalign.backbones.wan import Wan
from pixalign.backbones.weights import keep_as_int8
from pixalign.backbones.z_image import ZImage
from pixalign.core.batching import out_of_memory
from pixalign.core.checks import check_choice
from pixalign.core.wording import shortened

_FAMILIES: tuple[type[Backbone], ...] = (
    StableDiffusion, StableDiffusionXL, StableDiffusion3, Flux, Chroma, Flux2, ZImage, QwenImage,
    Lumina2, AuraFlow, Krea2, CogView4, CogView3Plus,
    PixArt, Sana,
    HunyuanDiT, Kolors, Playground, HiDream, Wan, Ltx,
)  # fmt: skip
FAMILIES: dict[str, type[Backbone]] = {backbone.family: backbone for backbone in _FAMILIES}
_HUB_OPTIONS = (
    "revision", "token", "cache_dir", "local_files_only", "proxies", "force_download",
)  # fmt: skip
_UNREAD = ("safety_checker", "feature_extractor", "image_encoder")
SINGLE_FILE = ".safetensors"
DEVICES = ("auto", "cpu", "cuda", "mps")
INT8 = "int8"  # of weights; they are computed with in the type of "auto"
DTYPES = ("auto", "float32", "float16", "bfloat16", INT8)


def wrap(pipe: Any) -> Backbone:
    """The backbone of a loaded diffusers pipeline, which stays as it is."""
    components = {
        name: type(getattr(part, "_orig_mod", part)).__name__  # a compiled part hides its class
        for name, part in getattr(pipe, "components", {}).items()
        if part is not None
    }
    return _family(components, type(pipe).__name__)(pipe)


def load_backbone(
    model: str | os.PathLike[str],
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    lora: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Backbone:
    """Load a hub id, a diffusers folder or a single-file checkpoint, and a LoRA's file on top.

    The family is checked before any weight is read. ``options`` go to diffusers (``revision``,
    ``variant``, ``token`` ...); a single file's ``config`` is a folder or a hub id that describes
    it, by default the one that diffusers knows for such weights.
    """
    import diffusers

    place = resolve_device(device)
    adapter = None if lora is None else _lora_file(Path(lora))
    older = options.pop("torch_dtype", None)  # diffusers' older word for dtype
    if older is not None and dtype != "auto":
        raise ValueError(f"dtype is {dtype!r} and torch_dtype {older!r}; allowed: one of them")
    dtype = str(older or dtype).removeprefix("torch.")
    check_choice("dtype", dtype, DTYPES)
    if dtype == INT8 and options.get("quantization_config") is not None:
        raise ValueError("dtype is 'int8' and a quantization_config is given; allowed: one of them")
    single = Path(os.fspath(model)).suffix == SINGLE_FILE
    described = _single_file_config(Path(model), options) if single else model
    index = _model_index(described, options)
    family = _family(_components(index), f"{index.get('_class_name')} in {os.fspath(model)!r}")
    number = resolve_dtype(dtype, place, family)
    settings = {**_left_out(index), **options}
    try:
        with refusing_missing():
            if single:
                settings |= {"config": os.fspath(described), "torch_dtype": number}
                kind = getattr(diffusers, str(index.get("_class_name")))
                pipe = kind.from_single_file(os.fspath(model), **settings)
            else:
                dtypes = {"default": number, "vae": torch.float32}
                settings = {"dtype": dtypes, "use_safetensors": True, **settings}
                pipe = diffusers.DiffusionPipeline.from_pretrained(model, **settings)
        check_whole(pipe)
        if pipe.vae.dtype != torch.float32:  # diffusers has a warning for each call
            pipe.vae.to(torch.float32)
    except Exception as error:  # damaged files end in libraries' errors of every kind
        if out_of_memory(error):
            raise
        raise OSError(f"cannot load {os.fspath(model)!r}: {_first_line(error)}") from error
    pipe.set_progress_bar_config(disable=True)
    if dtype == INT8:  # before a LoRA's own layers stand beside the model's
        keep_as_int8(pipe)
    if adapter is not None:
        _add_lora(pipe, adapter)
    backbone = family(pipe.to(place), os.fspath(model))
    lay_out(backbone)
    return backbone


def _single_file_config(path: Path, options: Mapping[str, Any]) -> Any:
    """The folder or hub id that describes a checkpoint: given, or known to diffusers."""
    from diffusers.loaders import single_file_utils

    if not path.is_file():
        raise FileNotFoundError(f"model {str(path)!r} is missing; name a file that is there")
    if options.get("config") is not None:
        return options["config"]
    try:  # names and shapes, from the file's header: no weight is read here
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{str(path)!r} is no checkpoint: {_first_line(error)}") from error
    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return single_file_utils.fetch_diffusers_config(weights)["pretrained_model_name_or_path"]


def _lora_file(path: Path) -> Path:
    """The path of a LoRA, checked before a model is loaded."""
    if path.suffix != SINGLE_FILE:
        raise ValueError(f"LoRA {str(path)!r} is no {SINGLE_FILE} file")
    if not path.is_file():
        raise FileNotFoundError(f"LoRA {str(path)!r} is missing; name a file that is there")
    return path


def _add_lora(pipe: Any, path: Path) -> None:
    """Load a LoRA as diffusers does; one that changes nothing in this model is refused."""
    if not hasattr(pipe, "load_lora_weights"):
        raise ValueError(f"{type(pipe).__name__} takes no LoRA")
    try:
        pipe.load_lora_weights(str(path.parent), weight_name=path.name, local_files_only=True)
    except Exception as error:  # what does not fit ends in libraries' errors of every kind
        if out_of_memory(error):
            raise
        raise OSError(f"cannot load LoRA {str(path)!r}: {_first_line(error)}") from error
    if not any(pipe.get_list_adapters().values()):
        raise ValueError(f"LoRA {str(path)!r} has nothing for this {type(pipe).__name__}")


def lay_out(backbone: Backbone) -> None:
    """Store convolutions as the device is fastest with them; what they compute stays the same.

    With channels last a CPU gains up to a fifth; a GPU's normalisation layers would undo it.
    """
    if backbone.device.type == "cpu":
        backbone.denoiser.to(memory_format=torch.channels_last)


def resolve_device(device: str) -> torch.device:
    """The device of that name; "auto" is the best one there is."""
    kind, _, number = device.partition(":")
    check_choice("device", kind, DEVICES)
    if ":" in device and not (kind == "cuda" and number.isdecimal()):
        raise ValueError(f"device is {device!r}; only cuda takes a number, as in 'cuda:1'")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    usable = [*(name for name in there if there[name]), "cpu"]  # the best first
    if kind == "auto":
        return torch.device(usable[0])
    if kind not in usable:
        raise ValueError(f"device {device!r} is not there; this machine has: {', '.join(usable)}")
    if number and int(number) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not there; there are {torch.cuda.device_count()}")
    return torch.device(device)


def resolve_dtype(dtype: str, device: torch.device, family: type[Backbone]) -> torch.dtype:
    """The number type that a network computes in; "auto" is float32 on a CPU, else the family's
    half type, and with weights of int8 it is that too.
    """
    usual = torch.float32 if device.type == "cpu" else family.half_dtype
    return usual if dtype in ("auto", INT8) else getattr(torch, dtype)


def family_of_folder(folder: Path) -> str | None:
    """The family of a diffusers folder, or None where it is none that we know."""
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
        return _family(_components(index), str(folder)).family
    except (OSError, ValueError):
        return None


def hide_loading_bars() -> None:
    """Keep diffusers and transformers from drawing bars while they load."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()


def _components(index: Any) -> dict[str, str]:
    """{component: class name} of a model_index.json, without what the folder lacks."""
    if not isinstance(index, Mapping):
        raise ValueError("model_index.json is not a table of components")
    entries = {name: entry for name, entry in index.items() if isinstance(entry, list | tuple)}
    return {name: entry[1] for name, entry in entries.items() if len(entry) == 2 and entry[1]}


def _family(components: Mapping[str, str], what: str) -> type[Backbone]:
    for family in FAMILIES.values():
        if family.recognises(components):
            return family
    known = "; ".join(f"{name}: {family.description}" for name, family in FAMILIES.items())
    raise ValueError(f"{what} is of no known family; known are {known}")


def _left_out(index: Mapping[str, Any]) -> dict[str, Any]:
    """Components not to load: those nobody reads here, and those that the folder lacks.

    diffusers does not load SD3 without T5 unless it is told so in words.
    """
    lacking = [name for name, entry in index.items() if entry == [None, None]]
    unread = [name for name in _UNREAD if name in index]
    quiet = {"requires_safety_checker": False} if "requires_safety_checker" in index else {}
    return dict.fromkeys(lacking + unread) | quiet


def _model_index(model: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    from diffusers import DiffusionPipeline

    name = os.fspath(model)
    if Path(name).exists():
        if not (Path(name) / "model_index.json").is_file():
            raise ValueError(f"{name!r} has no model_index.json; give a diffusers pipeline folder")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise FileNotFoundError(
            f"model {name!r} is neither a folder nor a hub id of the form 'owner/name'"
        )
    hub_options = {key: options[key] for key in _HUB_OPTIONS if key in options}
    try:
        index: dict[str, Any] = DiffusionPipeline.load_config(name, **hub_options)
    except (OSError, ValueError) as error:
        reason = _first_line(error)
        if Path(name).exists():
            raise ValueError(f"{name!r} has a damaged model_index.json: {reason}") from error
        where = "neither from the hub nor from its local cache"
        raise OSError(f"model {name!r} is not to be had, {where}: {reason}") from error
    return index


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().split("\n")[0])
