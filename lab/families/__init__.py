"""The lab's families: one small file each, one training loop for all."""

from __future__ import annotations

from lab.families.base import DENOISER, Family, Parts, restore
from lab.families.flux import Flux
from lab.families.sd import Sd1, Sd2
from lab.families.sd3 import Sd3
from lab.families.sdxl import Sdxl

FAMILIES: dict[str, Family] = {
    family.name: family for family in (Sd1(), Sd2(), Sdxl(), Sd3(), Flux())
}

__all__ = ["DENOISER", "FAMILIES", "Family", "Parts", "restore"]
