"""`load` a text-to-image model, and ask it: align, encode, generate, edit, capture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, Unpack, cast, overload

import torch

from pixalign import methods
from pixalign.alignment.present import Candidate, rank_present
from pixalign.alignment.request import EncodedImage, PreparedImage, encode_image
from pixalign.alignment.result import Alignment
from pixalign.attention.capture import WordMaps, capture
from pixalign.attention.layers import CrossWeights
from pixalign.backbones import Backbone, load_backbone, wrap
from pixalign.backbones.locations import located, model_name, model_settings, read_settings
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.checks import brief, check_choice
from pixalign.editing import edit
from pixalign.generation import generate
from pixalign.labelling.classes import Lists, PictureClasses
from pixalign.labelling.run import LabelRequest, LabelRun, OneProcess, Outputs, label_folder
from pixalign.pictures.reading import ImageLike
from pixalign.text.prompts import Classes, as_phrases


def load(
    model: Any = None,
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    compile: bool | str = False,
    memory: str = "normal",
    batch_size: int | str = "auto",
    progress: bool = False,
    settings: str | os.PathLike[str] | None = None,
    lora: str | os.PathLike[str] | None = None,
    **diffusers_options: Any,
) -> Model:
    """Load a model: a hub id, a diffusers folder, a single-file checkpoint, or your own pipeline.

    Without ``model`` this is the small model that comes with the package; "lab:sd2", "lab:sdxl",
    "lab:sd3" and "lab:flux" are its relatives in the source repository. A pipeline that you pass
    stays exactly as it is and where it is. The model's own settings come from pixalign.json in its
    folder, or from the file ``settings`` (`pixalign fit`). ``lora`` is a file (.safetensors) that
    is added to the model.

    ``diffusers_options`` (``revision``, ``variant``, ``torch_dtype`` ...) are passed to diffusers;
    a single file (.safetensors) may need ``config``, a folder or hub id that describes it.
    ``dtype="int8"`` keeps the weights in a byte each, and computes in the type of "auto".
    ``memory="low"`` uses smaller batches. ``compile=True`` compiles the network's passes. It is
    worth it for many images, because each new shape of latents takes a minute the first time.
    """
    limits = BatchSize(batch_size, memory)
    own = None if settings is None else read_settings(Path(settings))
    beside: dict[str, Any] = {}
    if model is None or isinstance(model, str | os.PathLike):
        where = located(model)
        beside = model_settings(Path(where)) if own is None else {}
        backbone = load_backbone(where, device, dtype, lora=lora, **diffusers_options)
        backbone.check_alignable()
        name = model_name(model) + ("" if lora is None else f" + {Path(lora).name}")
    else:
        if (device, dtype, lora, diffusers_options) != ("auto", "auto", None, {}):
            raise ValueError("device, dtype, lora and options cannot change a loaded pipeline")
        backbone = model if isinstance(model, Backbone) else wrap(model)
        name = type(backbone.pipe).__name__
    if compile:
        backbone.compile("inductor" if compile is True else compile)
    return Model(backbone, name, beside if own is None else own, limits, progress)


class AlignOptions(TypedDict, total=False):
    """The keywords of `Model.align`."""

    method: str | None
    config: AlignConfig | None
    caption: Any
    calibrate: str | None
    absent: str | None
    scores: Any
    target_masks: Any
    options: Mapping[str, Any] | None
    generator: torch.Generator | None
    seed: Any


class Model:
    """A frozen text-to-image model, made by `load`.

    Threads may share it; it answers one request at a time. ``settings`` are the model's own
    settings, which apply where a config leaves a choice open (`AlignConfig.resolved`).
    """

    def __init__(
        self,
        backbone: Backbone,
        name: str = "",
        settings: Mapping[str, Any] = MappingProxyType({}),
        batch_size: BatchSize | None = None,
        progress: bool = False,
    ) -> None:
        if not isinstance(backbone, Backbone):
            raise ValueError(f"Model is given {brief(backbone)}; pixalign.load(...) makes a Model")
        self.backbone, self.name, self.settings = backbone, name, dict(settings)
        self.batch_size, self.progress = batch_size or BatchSize(), progress

    def __repr__(self) -> str:
        about = self.backbone.record()
        return f"<pixalign.Model {self.name!r}: {about['family']}, {about['dtype']}>"

    @property
    def pipe(self) -> Any:
        """The diffusers pipeline."""
        return self.backbone.pipe

    def encode(
        self,
        image: ImageLike | PreparedImage | EncodedImage,
        *,
        config: AlignConfig | None = None,
    ) -> EncodedImage:
        """Read, resize and encode a picture, so that it can be aligned any number of times."""
        with self.backbone.lock:
            self.backbone.check_alignable()
            return encode_image(self.backbone, image, self.resolve(config).resize)

    @overload
    def align(
        self,
        image: ImageLike | EncodedImage,
        classes: Classes,
        **options: Unpack[AlignOptions],
    ) -> Alignment: ...

    @overload
    def align(
        self,
        image: list[Any] | tuple[Any, ...],
        classes: Classes | Sequence[Classes],
        **options: Unpack[AlignOptions],
    ) -> list[Alignment]: ...

    @overload
    def align(
        self,
        image: Iterator[Any],
        classes: Classes | Iterator[Classes],
        **options: Unpack[AlignOptions],
    ) -> Iterator[Alignment]: ...

    def align(
        self,
        image: Any,
        classes: Any,
        *,
        method: str | None = None,
        config: AlignConfig | None = None,
        caption: Any = None,
        calibrate: str | None = None,
        absent: str | None = None,
        scores: Any = None,
        target_masks: Any = None,
        options: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
        seed: Any = 0,
    ) -> Any:
        """Align an image, a list of images, or an iterator over images, with classes.

        ``image`` is a path, PIL image, array or encoded image. ``method`` is a name in
        `pixalign.methods.METHODS` ("dense" unless the config says otherwise), and ``options`` go to
        its constructor. ``caption`` replaces the prompt "a photo of c1, c2, ..." and must contain
        the classes. A list of images takes one list of classes (and one caption) for all images, or
        one for each, and gives the same results as single calls: each image draws its noise from
        ``seed`` (one for all, or one for each), or all draw from ``generator`` in turn.

        An iterator, such as ``iter(paths)``, gives an iterator of results in the same order. It
        reads images ahead in threads and holds only a few at a time; neighbours of the same size
        share batches. Classes, captions and seeds are the same for all images, or iterators too.

        ``absent="drop"`` empties the maps of classes that are probably not in the picture, and
        reads the attention of the others without them; every class keeps its place.

        ``calibrate="elbo"`` turns a baseline's cross-attention map h of a class into minmax(h) **
        (1 / S), with the scores S that "elbo" measures with this config, or with ``scores``, float
        [N] in (0, 1], one array for each image. With ``centred`` the powers are divided by their
        geometric mean. ``target_masks`` [N, H, W], one array for each image, are only for
        supervised methods: bool, or 0 and 1, and 255 where the truth is unknown.
        """
        kind = methods.method_of(config, method)
        config = _with_absent(config, absent)
        with self.backbone.lock:
            self.backbone.check_alignable()
            return kind.with_options(self, options or {}).align(
                image,
                classes,
                caption=caption,
                config=config,
                calibrate=calibrate,
                scores=scores,
                target_masks=target_masks,
                generator=generator,
                seed=seed,
            )

    def present(
        self,
        image: ImageLike | EncodedImage,
        classes: Classes,
        *,
        config: AlignConfig | None = None,
        seed: int = 0,
    ) -> list[Candidate]:
        """Rank candidate classes by how likely each is in the picture, the most likely first.

        Without a config, this uses the few timesteps of ``AlignConfig.fast()``.
        """
        with self.backbone.lock:
            self.backbone.check_alignable()
            config = self.resolve(config or AlignConfig.fast(), "dense")
            try:
                return rank_present(self, image, classes, config, seed)
            finally:
                self.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home

    def label(
        self,
        folder: str | os.PathLike[str],
        classes: Classes | Lists,
        out: str | os.PathLike[str],
        *,
        formats: Sequence[str] = (),
        method: str | None = None,
        config: AlignConfig | None = None,
        absent: str | None = None,
        candidates: int | None = 16,
        seed: int = 0,
        min_area: int = 0,
        instances: bool = True,
        queue: int = 0,
        strict: bool = False,
    ) -> LabelRun:
        """Label the pictures of a folder, and write ``formats`` below ``out``.

        ``classes`` apply to all pictures, or are `pixalign.labelling.classes.PictureClasses` by
        key. Finished work is kept, so the same call continues after a stop. The formats are names
        in `pixalign.labelling.formats.FORMATS`; `LabelRequest` and `Outputs` of
        `pixalign.labelling.run` describe the other options. Iterating over the result's
        ``finished`` gives the labelled pictures one at a time.
        """
        kind = methods.method_of(config, method)
        configured = kind.configured(_with_absent(config, absent) or AlignConfig())
        by_picture = isinstance(classes, Mapping) and any(
            isinstance(own, PictureClasses) for own in classes.values()
        )
        phrases = () if by_picture else as_phrases(classes)
        lists = cast(Lists, classes) if by_picture else None
        request = LabelRequest(Path(folder), phrases, lists, configured, seed, candidates)
        outputs = Outputs(tuple(formats), min_area, instances, queue)
        options = {"strict": strict, "show": self.progress}
        return label_folder(OneProcess(self), request, Path(out), outputs, **options)

    def generate(self, prompt: Any, **options: Any) -> Any:
        """Draw a prompt so that everything it names is there: see `pixalign.generation.generate`.

        One prompt gives a `Generation`, a list of prompts a list.
        """
        with self.backbone.lock:
            self.backbone.check_alignable()
            return generate(self, prompt, **options)

    def edit(self, image: Any, source: Any, target: Any, **options: Any) -> Any:
        """Change a picture by changing words of its prompt: see `pixalign.editing.edit`."""
        with self.backbone.lock:
            self.backbone.check_alignable()
            return edit(self, image, source, target, **options)

    def capture(
        self,
        words: Sequence[str],
        prompt: str | Sequence[str] | None = None,
        *,
        cross_weights: CrossWeights = "resolution",
    ) -> AbstractContextManager[WordMaps]:
        """Record word maps while the pipeline runs: see `pixalign.attention.capture.capture`.

        ``with model.capture(["dog"]) as maps: model.pipe("a dog on a sofa")``
        """
        return capture(self.backbone, words, prompt, cross_weights=cross_weights)

    def resolve(
        self,
        config: AlignConfig | None = None,
        method: str | None = None,
        calibrate: str | None = None,
    ) -> AlignConfig:
        """The config that applies to a method on this model."""
        return methods.resolve_config(config, self.backbone, self.settings, method, calibrate)

    def record(self) -> dict[str, Any]:
        """What results say about the model."""
        return {"name": self.name, **self.backbone.record()}


def _with_absent(config: AlignConfig | None, absent: str | None) -> AlignConfig | None:
    """The config with another choice of what becomes of absent classes, if one is given."""
    if absent is None:
        return config
    check_choice("absent", absent, ("keep", "drop"))
    return dataclasses.replace(config or AlignConfig(), absent=cast(Any, absent))
