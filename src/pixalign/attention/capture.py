"""Word maps of any running pipeline.

``with model.capture(["dog"]) as maps: model.pipe("a dog on a sofa")``
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor, nn

from pixalign.attention import AttentionReader, text_layers
from pixalign.attention.layers import CrossWeights, combine_layers
from pixalign.core.maps import minmax, resize
from pixalign.core.values import Phrase, Size, TokenSpans
from pixalign.pictures.drawing import heat
from pixalign.pictures.saving import write_animation
from pixalign.text.prompts import as_phrases, find
from pixalign.text.streams import TextStream

_HEAT = 0.6  # how much of an animation over pictures is the map


class WordMaps:
    """Cross-attention of some words at every denoising step of the last pipeline call.

    ``maps["dog"]`` is float32 [steps, images, h, w] on the CPU, and for videos [steps, videos,
    frames, h, w] with the latents' frames: attention to the word's tokens, averaged over heads and,
    with weights, over layers. A second call inside the block starts again.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.timesteps: list[float] = []
        self._steps: list[Tensor] = []  # [images, words, (frames,) h, w] each
        self._why_none = "call the pipeline inside the block first"

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, word: str) -> Tensor:
        if word not in self.words:
            raise KeyError(f"{word!r} was not captured; captured are {', '.join(self.words)}")
        return self.steps[:, :, self.words.index(word)]

    @property
    def steps(self) -> Tensor:
        """float32 [steps, images, words, (frames,) h, w]."""
        if not self._steps:
            raise ValueError(f"nothing captured: {self._why_none}")
        return torch.stack(self._steps)

    def heatmaps(self, size: Size | None = None) -> Tensor:
        """float32 [images, words, (frames,) H, W] in [0, 1]: mean over steps, resized, min-max."""
        mean = self.steps.mean(0)
        return minmax(resize(mean, size) if size else mean, tuple(range(2, mean.ndim)))

    def save(
        self,
        path: str | os.PathLike[str],
        word: str,
        *,
        image: int = 0,
        pictures: Sequence[Image.Image] = (),
        fps: float = 8,
    ) -> Path:
        """A word's map as an animation, .webp or .gif: over a video's frames, or over the steps.

        ``pictures`` are laid under it, a video's frames, each with the latents' frame that covers
        it, or one drawn picture; they also say how large it becomes.
        """
        if word not in self.words:
            raise ValueError(f"word is {word!r}; captured are {', '.join(self.words)}")
        place = self.words.index(word)
        video = self.steps.ndim == 6
        maps = self.steps.mean(0)[image, place] if video else self.steps[:, image, place]
        shown = list(pictures)
        if len(shown) == 1 and not video:
            shown *= len(maps)
        if shown:
            maps = resize(maps[_covering(len(shown), len(maps))], shown[0].size[::-1])
        frames = [heat(frame.numpy()) for frame in minmax(maps, (0, 1, 2))]
        if shown:
            pairs = zip(shown, frames, strict=True)
            frames = [Image.blend(below.convert("RGB"), above, _HEAT) for below, above in pairs]
        return write_animation(Path(path), frames, fps)


@contextmanager
def capture(
    backbone: Any,
    words: Sequence[str],
    prompt: str | Sequence[str] | None = None,
    *,
    cross_weights: CrossWeights = "resolution",
) -> Iterator[WordMaps]:
    """Record the maps of ``words`` while the backbone's pipeline is called inside the block.

    Works with text-to-image and image-to-image calls, videos and batches, with and without
    guidance; only the conditional half is read. The prompt is taken from the call; if you pass only
    embeddings, give it here. A word that is missing from one prompt of a batch has a map of zeros
    there; a word that is missing from all prompts is an error. The pipeline's results stay the same
    to the bit (unless it is compiled: inside the block it runs uncompiled), and when the block
    ends, also by an error, the pipeline is as before.
    """
    if cross_weights == "agreement":
        raise ValueError(
            "cross_weights is 'agreement'; capturing measures no evidence to agree with"
        )
    recorder = _Recorder(backbone, as_phrases(words), prompt, cross_weights)
    pipe, denoiser = backbone.pipe, backbone.denoiser
    original = pipe.encode_prompt
    if hasattr(original, "captures"):
        raise ValueError(
            "the pipeline's attention is captured already; name all words in one block"
        )
    with ExitStack() as undo:
        if "encode_prompt" in vars(pipe):
            undo.callback(setattr, pipe, "encode_prompt", original)
        else:
            undo.callback(delattr, pipe, "encode_prompt")
        pipe.encode_prompt = recorder.listening(original)
        for handle in (
            denoiser.register_forward_pre_hook(recorder.before, with_kwargs=True),
            denoiser.register_forward_hook(recorder.after),
        ):
            undo.callback(handle.remove)
        undo.enter_context(recorder.reader.attached(backbone))
        yield recorder.maps


@dataclass
class _Recorder:
    """Listens to the pipeline's prompt, its denoiser and its attention layers, in one thread."""

    backbone: Any
    words: tuple[Phrase, ...]
    prompt: str | Sequence[str] | None
    cross_weights: CrossWeights
    columns: Tensor | None = None  # [images, L, words]
    texts: Sequence[Tensor] = ()  # of the images, as the network is shown them
    ran: bool = True  # whether the network did since the prompt was read
    time: float = 0.0
    frames: int | None = None  # of a video

    def __post_init__(self) -> None:
        self.maps = WordMaps(tuple(word.name for word in self.words))
        self.sites = tuple(site for site in self.backbone.sites if site.reads_text)
        self.reader = AttentionReader(self.sites)
        self.thread = threading.get_ident()

    def listening(self, encode_prompt: Any) -> Any:
        signature = inspect.signature(encode_prompt)

        def encode_and_listen(*args: Any, **kwargs: Any) -> Any:
            # What a pipeline encodes after its prompt and before it runs is what guidance leaves.
            mine = threading.get_ident() == self.thread and self.ran
            given = signature.bind(*args, **kwargs).arguments
            prompts = self._prompts(given) if mine else []
            encoded = encode_prompt(*args, **kwargs)
            if mine:
                self._start(prompts, encoded[0], given.get("prompt") is not None)
            return encoded

        vars(encode_and_listen)["captures"] = self.words  # tells a block inside a block
        return encode_and_listen

    def _prompts(self, arguments: dict[str, Any]) -> list[str]:
        given = arguments.get("prompt")
        prompt = self.prompt if given is None else given
        if prompt is None:
            raise ValueError(
                "only embeddings were passed; tell capture(..., prompt=...) their text"
            )
        for name in ("prompt_2", "prompt_3"):
            if arguments.get(name) not in (None, prompt):
                raise ValueError(f"capture reads one prompt; leave {name} out")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        self.backbone.check_encoding(prompts, arguments)
        return prompts

    def _start(self, prompts: list[str], texts: Sequence[Tensor], encoded_now: bool) -> None:
        """Find the words in the prompts; images of one prompt follow each other."""
        images = len(texts)
        length = self.backbone.text_length(max(len(text) for text in texts))
        streams = self.backbone.call_streams(length)
        streams = [stream for stream in streams if stream.loaded or not encoded_now]
        if images % len(prompts):
            raise ValueError(f"{len(prompts)} prompts do not match {images} embeddings")
        matrices = torch.stack([self._matrix(prompt, length, streams) for prompt in prompts])
        for word, occurs in zip(self.words, matrices.any(0).any(0).tolist(), strict=True):
            if not occurs:
                raise ValueError(
                    f"word {word.name!r} does not occur on its own in {prompts!r}, as far as "
                    "the model reads"
                )
        self.columns = matrices.repeat_interleave(images // len(prompts), 0)
        self.texts, self.ran = texts, False
        self.maps.timesteps, self.maps._steps = [], []

    def _matrix(self, text: str, length: int, streams: list[TextStream]) -> Tensor:
        """[length, words] averaging matrix of one prompt, zeros for words it lacks."""
        prompt = find(self.words, text)
        columns = self.backbone.columns(prompt.text, prompt.spans, length, streams)
        spans = TokenSpans(prompt.text, prompt.classes, columns, length)
        return spans.averaging_matrix(len(self.words))

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Choose the rows to read: those with the prompt's text, wherever guidance puts them."""
        if threading.get_ident() != self.thread:
            return
        self.reader.columns, self.ran = None, True
        if self.columns is None:
            self.maps._why_none = "this pipeline does not pass its prompt through encode_prompt"
            return
        call = self.backbone.describe_call(args, kwargs)
        rows = _rows_of(self.texts, call.texts)
        if rows is None:
            self.maps._why_none = "the network was not shown the prompt's own embeddings"
            return
        self.reader.columns = self.columns.to(self.backbone.device)
        self.reader.rows, self.time, self.frames = rows, call.time, call.frames

    def after(self, *_: object) -> None:
        mine = threading.get_ident() == self.thread
        if not mine or self.reader.columns is None or len(self.reader.cross) != len(self.sites):
            return  # an auxiliary pass, such as skip-layer guidance
        cross = [self.reader.cross[site] for site in self.sites]  # [images, words, h, w] each
        combined = combine_layers(cross, text_layers(self.sites), self.cross_weights)
        if self.frames is not None:
            combined = rearrange(combined, "b n (f h) w -> b n f h w", f=self.frames)
        self.maps.timesteps.append(self.time)
        self.maps._steps.append(combined.float().cpu())


def _covering(frames: int, latents: int) -> list[int]:
    """Which latent frame covers each frame of a video: one covers the first, others as many."""
    each = max(1, -(-(frames - 1) // max(1, latents - 1)))
    return [0, *(1 + (frame - 1) // each for frame in range(1, frames))]


def _rows_of(texts: Sequence[Tensor], shown: Sequence[Tensor]) -> Tensor | slice | None:
    """Where each text stands in a batch; None where one is not there."""
    rows: list[int] = []
    for text in texts:
        places = (row for row in range(len(shown)) if row not in rows)
        row = next((row for row in places if _same(text, shown[row])), None)
        if row is None:
            return None
        rows.append(row)
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))  # views, not copies
    return torch.tensor(rows, device=shown[0].device)


def _same(text: Tensor, shown: Tensor) -> bool:
    return text.shape == shown.shape and torch.equal(text.to(shown), shown)
