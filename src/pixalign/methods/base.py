"""What every method is: from images and classes to heatmaps, on the same machinery."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pixalign.alignment.elbo import TextErrors, text_errors
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts
from pixalign.alignment.request import EncodedImage, Request, encode_image
from pixalign.alignment.result import Alignment, MethodOutput
from pixalign.alignment.task import AlignmentTask, alike_together, checked_scores, pixels
from pixalign.alignment.trust import distillation, there
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.ahead import read_ahead, until_error
from pixalign.core.checks import brief, check_choice, check_finite
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.methods.pending import Pending, concluded, in_turn
from pixalign.text.prompts import Prompt, as_phrases

Generators = Callable[[], torch.Generator]  # where the next picture's noise comes from
_PIXELS = 2**27  # of pictures that are held together: 0.4 GB
_PLANS = 64  # that are kept during a call
Plans = dict[tuple[tuple[Phrase, ...], str | None], PromptPlan]  # by classes and caption
Timesteps = tuple[NoisedTimesteps, NoisedTimesteps | None]  # of collecting, and of the ELBO


class Method(ABC):
    """A way from images and classes to heatmaps; ``align`` is what `Model.align` calls.

    A method says at which timesteps it collects (`timesteps`), under which texts (`prompts`) and
    what it makes of a group of pictures (`heatmaps`). ``calibrations`` are what may calibrate its
    maps, the usual one first; ``defaults`` are its own for fields that a config leaves open. The
    heatmaps of a ``separable`` method are a function of attention maps, exponents and evidence
    alone, so that many settings share one measurement.
    """

    name: ClassVar[str]
    supervised: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    calibrations: ClassVar[tuple[str, ...]] = ("none", "elbo", "evidence")
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, model: AlignmentModel) -> None:
        self.model = model
        self.backbone: Backbone = model.backbone
        self.progress = Progress(0, self.name, False)  # of the call that is under way
        if not self.reads(self.backbone):
            raise ValueError(
                f"{self.name} reads a UNet's cross- and self-attention, which this "
                f"{self.backbone.family} model lacks; allowed families: sd, sdxl"
            )

    @classmethod
    def reads(cls, backbone: Backbone) -> bool:
        """Whether the method knows a model's kind of attention."""
        return True

    @classmethod
    def check_options(cls, options: Iterable[str], what: str = "") -> None:
        """Refuse options, by name, that the constructor does not take."""
        parameters = inspect.signature(cls).parameters
        _, *known = parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return  # the constructor says so itself
        for name in options:
            if not known:
                raise ValueError(f"{cls.name} takes no options; {name!r} is given")
            check_choice(f"an option of {what or cls.name}", name, known)

    @classmethod
    def with_options(cls, model: AlignmentModel, options: Mapping[str, Any]) -> Self:
        """The method under options of its constructor; wrong ones are refused by name."""
        cls.check_options(options)
        try:
            return cls(model, **options)
        except (TypeError, IndexError) as error:
            raise ValueError(
                f"options of {cls.name} are {brief(dict(options))}: {error}"
            ) from error

    @classmethod
    def configured(cls, config: AlignConfig, calibrate: str | None = None) -> AlignConfig:
        """A config for this method; one that is made for another is refused."""
        if config.method not in (None, cls.name):
            raise ValueError(
                f"method is {cls.name!r}, the config is made for {config.method!r}; leave one out"
            )
        chosen = calibrate or config.calibrate or cls.calibrations[0]
        check_choice(f"calibrate of {cls.name}", chosen, cls.calibrations)
        own = {name: x for name, x in cls.defaults.items() if getattr(config, name) is None}
        return dataclasses.replace(config, method=cls.name, calibrate=chosen, **own)

    @abstractmethod
    def collect_count(self, config: AlignConfig) -> int:
        """How many timesteps attention is collected at."""

    @abstractmethod
    def timesteps(self, latents: Tensor, config: AlignConfig, generators: Generators) -> Timesteps:
        """With their noise: those of collecting, and of the ELBO where its passes are made."""

    @abstractmethod
    def heatmaps(
        self, tasks: Sequence[AlignmentTask], collected: Sequence[Any]
    ) -> list[MethodOutput]:
        """What the method finds in pictures of one size, whose scores are known now.

        ``collected`` is what `collect` gave; a method may also read attention here.
        """

    def collect(self, tasks: Sequence[AlignmentTask]) -> Sequence[Any]:
        """Attention of pictures of one size, read after their errors are measured."""
        return [None] * len(tasks)

    def prompts(
        self, plan: PromptPlan, caption: str | None, config: AlignConfig
    ) -> tuple[Prompt, ...]:
        """The texts under which the picture is shown."""
        return plan.prompts

    def texts(self, plan: PromptPlan, config: AlignConfig) -> tuple[str, ...]:
        """The texts whose errors are measured, where the config asks for any."""
        return plan.elbo_texts

    def images_together(self, latents: Tensor, config: AlignConfig) -> int:
        """How many pictures like latents [1, C, h, w] go through `heatmaps` at once."""
        return 1

    def targets(self, mask: Any, plan: PromptPlan, encoded: EncodedImage) -> Tensor | None:
        """A supervised method's masks uint8 [N, H, W]: 0, 1, 255; the others take none."""
        if mask is not None:
            raise ValueError(
                f"target_masks are given; {self.name} learns from none: leave them out"
            )
        return None

    def align(
        self,
        image: Any,
        classes: Any,
        *,
        caption: Any = None,
        config: AlignConfig | None = None,
        calibrate: str | None = None,
        scores: Any = None,
        target_masks: Any = None,
        generator: torch.Generator | None = None,
        seed: Any = 0,
        errors: TextErrors | None = None,
    ) -> Any:
        """Align an image, a list of images, or an iterator over them: see `Model.align`.

        ``errors`` of the one image, measured before under the same settings, are not measured anew.
        """
        given = (classes, caption, scores, target_masks, seed)
        if calibrate is not None and scores is not None:
            raise ValueError(
                f"scores are given and calibrate is {calibrate!r}; allowed: one of them"
            )
        if scores is not None:
            check_choice(f"calibrate of {self.name} with scores", "elbo", self.calibrations)
            calibrate = "elbo"
        settings = self.model.resolve(config, self.name, calibrate)
        if isinstance(image, Iterator):
            requests = Request.each(image, *given)
            pending = self._iterate(requests, settings, scores is None, generator)
            return concluded(in_turn(self.backbone.lock, pending))
        request = Request.read(image, *given)
        results: dict[int, Alignment] = {}
        try:
            tasks = self._tasks(request, settings, measure=scores is None)
            tasks = [dataclasses.replace(task, errors=errors) for task in tasks]
            order = list(range(len(tasks)))
            if generator is None:  # else all draw from it in turn, and keep their order
                order = alike_together([task.latent for task in tasks])
            queued = (tasks[index] for index in order)
            with Progress(self._passes(tasks), self.name, self.model.progress) as self.progress:
                aligned = concluded(self._align_each(queued, generator))
                results.update(zip(order, aligned, strict=True))
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
        ordered = [results[index] for index in range(len(tasks))]
        return ordered if request.many else ordered[0]

    def _iterate(
        self,
        requests: Iterator[Request],
        config: AlignConfig,
        measure: bool,
        generator: torch.Generator | None,
    ) -> Iterator[Pending]:
        """What is to be concluded, in order; pictures are read ahead, and then let go."""

        plans: Plans = {}

        def tasks(prepared: Iterator[Request]) -> Iterator[AlignmentTask]:
            for request in prepared:
                (task,) = self._tasks(request, config, measure, plans)
                self.progress.expect(self._passes([task]))
                yield task

        def read(request: Request) -> Request:
            return request.prepared(self.backbone, config.resize)

        try:
            with (
                read_ahead(read, requests) as prepared,
                Progress(0, self.name, self.model.progress) as self.progress,
            ):
                yield from self._align_each(tasks(prepared), generator)
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home

    def _tasks(
        self, request: Request, config: AlignConfig, measure: bool, planned: Plans | None = None
    ) -> list[AlignmentTask]:
        """A task a picture; all words and files are checked before the network costs anything.

        ``planned`` is what the call has planned so far.
        """
        measured = config if measure else dataclasses.replace(config, calibrate="none")
        captions, planned = request.captions, {} if planned is None else planned
        plans = []
        for pair in zip(map(as_phrases, request.classes), captions, strict=True):
            if pair not in planned:
                if len(planned) == _PLANS:
                    planned.clear()
                planned[pair] = plan_prompts(self.backbone, *pair, measured)
            plans.append(planned[pair])
        prompts = [self.prompts(*pair, config) for pair in zip(plans, captions, strict=True)]
        known = [checked_scores(*pair) for pair in zip(request.scores, plans, strict=True)]
        request.check_files()
        encoded = [encode_image(self.backbone, image, config.resize) for image in request.images]
        targets = [
            self.targets(*each) for each in zip(request.target_masks, plans, encoded, strict=True)
        ]
        dropping = config.absent == "drop"  # then further texts wait until it is known what stays
        asked: list[tuple[str, ...]] = [
            (plan.elbo_texts if dropping else self.texts(plan, config)) if measured.measured else ()
            for plan in plans
        ]
        return [
            AlignmentTask(*parts, config, *measures, scores_given=measures[2] is not None)
            for parts, measures in zip(
                zip(encoded, plans, captions, prompts, strict=True),
                zip(request.seeds, asked, known, targets, strict=True),
                strict=True,
            )
        ]

    def _passes(self, tasks: Sequence[AlignmentTask]) -> int:
        """How many forward passes the tasks still take."""
        return sum(
            len(task.prompts) * self.collect_count(task.config)
            + len(task.lacking) * task.config.elbo_count
            for task in tasks
        )

    def _align_each(
        self, tasks: Iterable[AlignmentTask], generator: torch.Generator | None
    ) -> Iterator[Pending]:
        """In the order of the tasks; neighbours of one size and group share batches.

        Where a task cannot be made, those before it are finished first.
        """
        group: list[AlignmentTask] = []
        failed: list[Exception] = []
        for task in until_error(tasks, failed):
            if group and task.company != group[0].company:
                yield from self._align_group(group, generator)
                group = []
            group.append(task)
            if len(group) == self._most(task) or pixels(group) >= _PIXELS:
                yield from self._align_group(group, generator)
                group = []
        if group:
            yield from self._align_group(group, generator)
        if failed:
            raise failed[0]

    def _most(self, task: AlignmentTask) -> int:
        """How many pictures like this one go through the network together."""
        low = self.model.batch_size.memory == "low"
        return 1 if low else self.images_together(task.encoded.latents, task.config)

    def _align_group(
        self, tasks: Sequence[AlignmentTask], generator: torch.Generator | None
    ) -> Iterator[Pending]:
        """Noise first, then errors and scores, then attention of the classes to show.

        Then maps at the pictures' sizes, of one picture at a time.
        """
        noted = len(self.model.batch_size.notes)
        tasks = [self._timed(task, generator) for task in tasks]
        with self.backbone.encoded_ahead(text for task in tasks for text in task.read):
            tasks = self._measured(tasks)
            shown = {index: self._without_absent(task) for index, task in enumerate(tasks)}
            places = [index for index, task in shown.items() if task is not None]
            kept = [task for task in shown.values() if task is not None]
            self.progress.expect(self._passes(kept) - self._passes(tasks))
            there = self._measured(kept)
            collected = self.collect(there) if there else []
        read = dict(zip(places, zip(there, collected, strict=True), strict=True))
        del collected
        for index, task in enumerate(tasks):
            made = None
            if index in read:
                known, attention = read.pop(index)
                (output,) = self.heatmaps([known], [attention])
                made = known, output
            notes = self.model.batch_size.notes[noted:]
            yield self._pending(task, made, notes, task.seed if generator is None else None)

    def _pending(
        self,
        task: AlignmentTask,
        made: tuple[AlignmentTask, MethodOutput] | None,
        notes: Sequence[str],
        seed: int | None,
    ) -> Pending:
        """What a user's result is made from: a task, and what the method made of it."""
        if made is not None:
            check_finite(made[1].cross, "attention maps", self.backbone.dtype)
        about = {"method": self.name, "supervised": self.supervised, "model": self.model.record()}
        notes = [*notes, *self._distillation(task.config)]
        own = "absent_below" in self.model.settings
        return Pending(task, made, notes, {**about, "seed": seed}, own)

    def _timed(self, task: AlignmentTask, generator: torch.Generator | None) -> AlignmentTask:
        """The task with its timesteps and their noise."""

        def generators() -> torch.Generator:
            return generator or torch.Generator().manual_seed(task.seed)

        drawn = self.timesteps(task.encoded.latents, task.config, generators)
        return dataclasses.replace(task, timesteps=drawn[0], scoring=drawn[1])

    def _distillation(self, config: AlignConfig) -> list[str]:
        """What a distilled network's evidence is worth, where there is any."""
        if not config.measured:
            return []
        why = self.backbone.distilled if config.distilled else None
        return distillation(config, why or "the settings say so", self.backbone.tells_guidance)

    def _measured(self, tasks: Sequence[AlignmentTask]) -> Sequence[AlignmentTask]:
        """The tasks with the errors under those of their texts that lack them, and the scores."""
        lacking = [task.lacking for task in tasks]
        if any(lacking):
            missed = [task.errors.missed for task in tasks if task.errors]
            errors = text_errors(
                self.backbone,
                torch.cat([task.encoded.latents for task in tasks]),
                lacking,
                [task.scoring for task in tasks if task.scoring is not None],
                self.model.batch_size,
                self.progress,
                by_position=tasks[0].config.by_position,
                missed=[own for own in missed if own is not None] or None,
            )
            tasks = [
                dataclasses.replace(task, errors=task.errors.joined(own) if task.errors else own)
                for task, own in zip(tasks, errors, strict=True)
            ]
        return [self._scored(task) for task in tasks]

    def _scored(self, task: AlignmentTask) -> AlignmentTask:
        """The task with the scores of its classes, where their errors are known."""
        if task.errors is None or not task.texts or task.scores_given:
            return task
        classes = task.errors.of(task.plan.elbo_texts)
        scores = classes.scores(task.config, self.backbone.objective)
        return dataclasses.replace(task, scores=scores)

    def _without_absent(self, task: AlignmentTask) -> AlignmentTask | None:
        """The task with the classes that are in the picture, where others are to be dropped."""
        evidence, config = task.clear_evidence, task.config
        if config.absent == "keep" or evidence is None:
            return task
        kept = there(evidence, config).nonzero()[:, 0].tolist()
        if not kept:
            return None
        phrases = [task.plan.phrases[index] for index in kept]
        plan = plan_prompts(self.backbone, phrases, task.caption, config)
        return dataclasses.replace(
            task,
            plan=plan,
            prompts=self.prompts(plan, task.caption, config),
            texts=self.texts(plan, config),
            targets=None if task.targets is None else task.targets[kept],
            scores=None if task.scores is None else task.scores[kept],
        )
