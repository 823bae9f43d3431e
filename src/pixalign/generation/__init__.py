"""Compositional generation: pictures in which everything that the prompt names is there."""

from pixalign.generation.result import Generation
from pixalign.generation.run import GENERATION_METHODS, entities_in, generate
from pixalign.text.entities import Entity, entities_of, given_entities, read_non_entities

__all__ = [
    "GENERATION_METHODS",
    "Entity",
    "Generation",
    "entities_in",
    "entities_of",
    "generate",
    "given_entities",
    "read_non_entities",
]
