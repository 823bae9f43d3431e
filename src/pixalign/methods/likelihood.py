"""The likelihood alone: no attention is read, so any network that estimates noise will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from pixalign.alignment.elbo import EMPTY
from pixalign.alignment.evidence import blur, information
from pixalign.alignment.heatmaps import to_image
from pixalign.alignment.plan import PromptPlan, plan_timesteps
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.config import AlignConfig
from pixalign.methods.base import Generators, Method, Timesteps
from pixalign.text.prompts import Prompt, compose


class Likelihood(Method):
    """The error under all classes but one, where no other class explains the picture better.

    ``leave_one_out`` shows the picture under "a photo of" all classes but i: where the error is
    high, class i is missed. Of classes that do not fit one prompt, each is left out of its own; a
    class that stands alone leaves an empty text. ``leave_one_out=False`` takes the information O
    instead, and makes no more passes than "dense".
    """

    name = "likelihood"
    calibrations = ("evidence",)
    defaults: ClassVar[Mapping[str, Any]] = {"information_weight": 0.3, "edges": "guided"}

    def collect_count(self, config: AlignConfig) -> int:
        return 0

    def prompts(
        self, plan: PromptPlan, caption: str | None, config: AlignConfig
    ) -> tuple[Prompt, ...]:
        """None: attention is not read."""
        if caption is not None:
            raise ValueError(f"caption is {caption!r}; {self.name} reads none: leave it out")
        return ()

    def texts(self, plan: PromptPlan, config: AlignConfig) -> tuple[str, ...]:
        """Those of the classes, and of all but each."""
        left_out = _without(plan, config.template) if config.leave_one_out else ()
        return (*plan.elbo_texts, *left_out)

    def timesteps(self, latents: Tensor, config: AlignConfig, generators: Generators) -> Timesteps:
        """The ELBO's, with the noise that they have beside attention."""
        return plan_timesteps(self.backbone.schedule, latents, config, generators())

    def heatmaps(
        self, tasks: Sequence[AlignmentTask], collected: Sequence[None]
    ) -> list[MethodOutput]:
        outputs = []
        for task in tasks:
            config, evidence = task.config, task.evidence
            assert task.errors is not None
            assert evidence is not None
            if config.leave_one_out:
                without = task.errors.of(_without(task.plan, config.template))
                maps = blur(without.by_position(), config.omission_blur)
            else:
                maps = information(evidence, config)
            outputs.append(MethodOutput(to_image(maps, task.size), maps))
        return outputs


def _without(plan: PromptPlan, template: str) -> tuple[str, ...]:
    """For each class the prompt that it stands in without it; empty where it stands alone."""
    texts = [EMPTY] * len(plan.phrases)
    for prompt in plan.prompts:
        for index in prompt.classes if len(prompt.classes) > 1 else ():
            others = [other for other in prompt.classes if other != index]
            texts[index] = compose(plan.phrases, others, template).text
    return tuple(texts)
