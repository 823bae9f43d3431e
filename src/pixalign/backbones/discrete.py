"""What networks share that were trained on a table of noise levels, told by its index."""

from __future__ import annotations

from functools import cached_property

from pixalign.backbones.base import Backbone
from pixalign.core.checks import check_choice
from pixalign.diffusion.schedule import DiscreteSchedule

_OBJECTIVES = {"epsilon": "epsilon", "v_prediction": "velocity", "sample": "sample"}


class DiscreteBackbone(Backbone):
    """A network whose objective and table the pipeline's scheduler tells."""

    @cached_property
    def objective(self) -> str:
        kind = self.pipe.scheduler.config.prediction_type
        check_choice("prediction_type", kind, tuple(_OBJECTIVES))
        return _OBJECTIVES[kind]

    @cached_property
    def schedule(self) -> DiscreteSchedule:
        """The training schedule behind whatever sampler the pipeline carries."""
        from diffusers import DDPMScheduler

        scheduler = self.pipe.scheduler
        config = scheduler.config
        if "beta_schedule" not in config and config.get("trained_betas") is None:
            raise ValueError(
                f"{type(scheduler).__name__} does not say with which noise schedule the network "
                "was trained; known are schedulers with a beta_schedule"
            )
        return DiscreteSchedule(DDPMScheduler.from_config(config).alphas_cumprod)
