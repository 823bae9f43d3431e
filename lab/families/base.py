"""What a family of the lab's models is: its parts, how it reads a text, and its pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from lab.recipe import Recipe
from pixalign.backbones import wrap
from pixalign.core.values import TextCondition

DENOISER = "denoiser"

Parts = nn.ModuleDict
"""A family's networks by name: "denoiser", and the text encoders as the pipeline names them."""


class Family(ABC):
    """How a small model of one kind is built, and what it makes of captions.

    Everything else (scenes, noise, objective, gates) is the same for all, and is asked of the
    backbone of the family's pipeline.
    """

    name: ClassVar[str]
    recipe: ClassVar[Recipe] = {}  # what differs from the denoiser's defaults

    @abstractmethod
    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """New networks for the VAE's latents; parts that do not learn need no gradient."""

    @abstractmethod
    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """What the denoiser reads of token ids [B, L], as the pipeline computes it of captions."""

    @abstractmethod
    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """The diffusers pipeline of those parts."""

    def inherit(self, parts: Parts, donor: Any) -> None:
        """Take from another pipeline of the lab what fits; a ValueError says what must and does
        not."""
        restore(parts, donor)


def restore(parts: Parts, donor: Any) -> None:
    """Take all networks of a pipeline of the same shapes."""
    for name, part in parts.items():
        given = wrap(donor).denoiser if name == DENOISER else getattr(donor, name, None)
        if given is None:
            raise ValueError(f"a {type(donor).__name__} has no {name}")
        load_whole(part, given, name)


def load_whole(part: nn.Module, donor: nn.Module, name: str) -> None:
    """Take every tensor; where one does not fit, a ValueError names the part."""
    try:
        part.load_state_dict(donor.state_dict())
    except RuntimeError as error:
        raise ValueError(f"the {name} differs: {str(error).splitlines()[0]}") from error


def copy_matching(part: nn.Module, donor: nn.Module) -> None:
    """Copy every tensor that has the donor's name and shape."""
    shapes = {name: tensor.shape for name, tensor in part.state_dict().items()}
    fitting = {k: v for k, v in donor.state_dict().items() if shapes.get(k) == v.shape}
    part.load_state_dict(fitting, strict=False)
