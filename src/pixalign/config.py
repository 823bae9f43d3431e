"""Every constant of the method, in one frozen and validated place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pixalign.core.checks import brief, check_choice
from pixalign.diffusion.timesteps import STRATEGIES, WEIGHTINGS

PRESETS = ("default", "paper", "official", "fast", "uncalibrated")
_PAPER: dict[str, Any] = {
    "method": "elbo",
    "gamma": 1 / 3,
    "centred": False,
    "prompt_order": "given",
}

# What holds where neither the caller, the method nor the model says otherwise.
FALLBACK: Mapping[str, Any] = MappingProxyType(
    {
        "method": "dense",
        "calibrate": "elbo",
        "gamma": 1 / 3,
        "centred": False,
        "cross_weights": "resolution",
        "collect_strategy": "small",
        "information_weight": 0.15,
        "agreement_floor": 0.0,
        "edges": "none",
        "threshold": 0.4,
        "temperature": 0.1,
        "absent_below": 0.001,
        "distilled": False,
    }
)
# What a model's own settings may say; see `AlignConfig.resolved`. The last two are numbers, or map
# the names of methods to them.
BY_METHOD = ("threshold", "temperature")
MODEL_SETTINGS = (
    "gamma", "centred", "cross_weights", "collect_range", "absent_below", "distilled", *BY_METHOD,
)  # fmt: skip
MOST_STEPS = 1000  # timesteps: as many as networks are trained on
CALIBRATIONS = ("none", "elbo", "evidence")
SELF_ATTENTION = ("once", "twice", "up-after-all", "none")
EDGES = ("none", "guided")
CROSS_WEIGHTS = ("resolution", "gaussian", "uniform", "balanced", "agreement")

# What the fields of an `AlignConfig` may be; None too, where that is the default.
_CHOICES: dict[str, tuple[object, ...]] = {
    "calibrate": (*CALIBRATIONS, None),
    "centred": (True, False, None),
    "image_only_attention": (True, False),
    "elbo_strategy": tuple(STRATEGIES),
    "collect_strategy": (*STRATEGIES, None),
    "elbo_weighting": WEIGHTINGS,
    "elbo_text": ("phrase", "name"),
    "evidence_form": ("cosine", "error"),
    "leave_one_out": (True, False, None),
    "distilled": (True, False, None),
    "absent": ("keep", "drop"),
    "edges": (*EDGES, None),
    "prompt_order": ("sorted", "given"),
    "class_tokens": ("name", "phrase"),
    "text_encoders": ("all", "clip"),
    "self_attention": SELF_ATTENTION,
    "resize": ("square", "keep"),
}
_BLURS = ("evidence_blur", "information_blur", "omission_blur", "absent_blur")
_NUMBERS = (
    "gamma", "threshold", "temperature", "evidence_strength", "evidence_margin",
    "information_weight", "agreement_floor", "absent_below", "absent_log_snr", "doubt_below",
    *_BLURS,
)  # fmt: skip
_RANGES: dict[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("gamma",): (lambda x: 0 < x <= 1, "0 < gamma <= 1"),
    ("threshold", "information_weight"): (lambda x: 0 <= x <= 1, "0 to 1"),
    ("temperature",): (lambda x: 0 < x < float("inf"), "a number above 0"),
    ("evidence_strength", "evidence_margin", "agreement_floor"): (
        lambda x: 0 <= x < float("inf"), "a number from 0",
    ),
    ("absent_log_snr",): (lambda x: abs(x) < float("inf"), "a number"),
    _BLURS: (lambda x: 0 <= x <= 1, "a share of the side, 0 to 1"),
    ("absent_below",): (lambda x: 0 <= x <= 1, "0 to 1"),
    ("doubt_below",): (lambda x: 0 <= x <= 1, "0 to 1"),
    ("elbo_steps", "collect_steps"): (
        lambda x: isinstance(x, int) and 1 <= x <= MOST_STEPS, f"a whole number, 1 to {MOST_STEPS}",
    ),
    ("elbo_range", "collect_range"): (
        lambda x: len(x) == 2 and 0 <= x[0] < x[1] <= 1, "(low, high) inside [0, 1]",
    ),
    ("elbo_timesteps", "collect_timesteps"): (
        lambda x: 1 <= len(x) <= MOST_STEPS and all(isinstance(i, int) and i >= 0 for i in x),
        f"1 to {MOST_STEPS} whole numbers >= 0",
    ),
    ("method",): (lambda x: isinstance(x, str), "a method's name, or None"),
    ("template",): (lambda x: x.count("{}") == x.count("{") == 1, "a text with exactly one {}"),
}  # fmt: skip


@dataclass(frozen=True)
class AlignConfig:
    """How images and classes are aligned (Algorithm 1). Immutable, and checked when it is built.

    ``AlignConfig()`` is this library's default. ``paper()`` is what the paper describes,
    ``official()`` what the authors' released code computes, ``fast()`` the default with a quarter
    of the passes, and ``uncalibrated()`` attention alone. Each preset takes overrides:
    ``AlignConfig.paper(gamma=1 / 2)``.

    None leaves a choice to the method, then to the model's own settings, then to `FALLBACK`.
    """

    # A name in `pixalign.methods.METHODS`, and what calibrates its maps (`CALIBRATIONS`).
    method: str | None = None
    calibrate: str | None = None

    # Calibration, Eq. 5 and line 7.
    gamma: float | None = None
    centred: bool | None = None

    # ELBO, Eq. 2. Explicit timesteps (indices into the training schedule) override the rest.
    elbo_steps: int = 20
    elbo_strategy: str = "even"
    elbo_range: tuple[float, float] | None = None
    elbo_timesteps: tuple[int, ...] | None = None
    elbo_weighting: str = "uniform"
    elbo_text: Literal["phrase", "name"] = "phrase"

    # The ELBO pixel by pixel (`pixalign.alignment.evidence`): H^(1 - a) O^a exp(beta min(0, L + m))
    # with a the weight of the information, beta the strength of the evidence and m its margin.
    # Blurs are shares of the side. Chosen on the lab's val scenes, one rule for all its models.
    evidence_form: Literal["cosine", "error"] = "cosine"
    evidence_strength: float = 2.0
    evidence_margin: float = 0.5
    evidence_blur: float = 2 / 32
    information_weight: float | None = None
    information_blur: float = 1 / 64
    # "likelihood": the error under all classes but one, or, without these prompts, O itself, as
    # on distilled networks.
    leave_one_out: bool | None = None
    omission_blur: float = 1.5 / 32

    # Collecting attention, Eq. 4.
    collect_steps: int = 10
    collect_strategy: str | None = None
    collect_range: tuple[float, float] | None = None
    collect_timesteps: tuple[int, ...] | None = None

    # Prompts.
    template: str = "a photo of {}"
    prompt_order: Literal["sorted", "given"] = "sorted"
    class_tokens: Literal["name", "phrase"] = "name"
    text_encoders: Literal["all", "clip"] = "all"

    # From layers to heatmaps. Weights may be given by rank of resolution, lowest first, or by
    # the names of layers. By "agreement" a layer counts as much as the floor and the square of its
    # correlation with the evidence.
    cross_weights: str | tuple[float, ...] | Mapping[str, float] | None = field(
        default=None, hash=False
    )
    agreement_floor: float | None = None
    self_attention: str = "once"
    image_only_attention: bool = False

    # Pictures in, masks out. "guided" draws heatmaps to the picture's edges.
    edges: str | None = None
    resize: Literal["square", "keep"] = "square"
    threshold: float | None = None
    temperature: float | None = None

    # Trust (`pixalign.alignment.trust`): a class is called absent if it explains less than that
    # share of the picture that no other class explains (at 20 timesteps, of which those count where
    # noise does not drown the picture; blurred by that share of the side), and doubted where it
    # explains less than that share of what another class explains. "drop" empties the maps of
    # absent ones.
    absent_below: float | None = None
    absent_log_snr: float = -3.2
    absent_blur: float = 2 / 32
    doubt_below: float = 0.5
    absent: Literal["keep", "drop"] = "keep"

    # Whether the network was distilled to answer as if guided, so that its raw losses mislead. None
    # is what the model's files say.
    distilled: bool | None = None

    # Fields that take another value on some family of models: {"sd3": {"gamma": 0.5}}.
    by_family: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("elbo_timesteps", "collect_timesteps", "elbo_range", "collect_range"):
            if getattr(self, name) is not None:
                if not isinstance(getattr(self, name), Iterable):
                    raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: a list")
                plain = (x.item() if hasattr(x, "item") else x for x in getattr(self, name))
                object.__setattr__(self, name, tuple(plain))
        object.__setattr__(self, "cross_weights", _plain_weights(self.cross_weights))
        given = self.by_family
        if not isinstance(given, Mapping) or not all(
            isinstance(v, Mapping) for v in given.values()
        ):
            raise ValueError(f"by_family is {brief(given)}; allowed: {{family: {{field: value}}}}")
        families = {  # JSON knows lists alone
            family: {key: tuple(v) if isinstance(v, list) else v for key, v in changes.items()}
            for family, changes in self.by_family.items()
        }
        object.__setattr__(self, "by_family", families)
        self._check_fields()
        self._check_cross_weights()
        for family, overrides in self.by_family.items():
            fixed = {"by_family", "method", "calibrate"}
            known = {f.name for f in dataclasses.fields(self)} - fixed
            unknown = set(overrides) - known
            if unknown:
                raise ValueError(f"by_family[{family!r}] names unknown fields {sorted(unknown)}")
            dataclasses.replace(self, by_family={}, **overrides)

    def _check_fields(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        optional = {f.name for f in dataclasses.fields(self) if f.default is None}
        for names, (test, allowed) in _RANGES.items():
            for name in names:
                value = getattr(self, name)
                if value is None and name in optional:
                    continue
                if name in _NUMBERS and not isinstance(value, float | int):
                    raise ValueError(f"{name} is {brief(value)}; allowed: a number")
                try:
                    right = test(value)
                except (TypeError, AttributeError, ValueError, IndexError):  # of another kind
                    right = False
                if not right:
                    raise ValueError(f"{name} is {brief(value)}; allowed: {allowed}")

    def _check_cross_weights(self) -> None:
        given = self.cross_weights
        if given is None:
            return
        if isinstance(given, str):
            check_choice("cross_weights", given, CROSS_WEIGHTS)
            return
        weights = list(given.values()) if isinstance(given, Mapping) else list(given)
        if not any(weights) or not all(0 <= weight < float("inf") for weight in weights):
            raise ValueError(
                f"cross_weights is {brief(given)}; allowed: {', '.join(CROSS_WEIGHTS)}, or weights "
                ">= 0, not all 0, one for each resolution, lowest first, or by name of layer"
            )

    @classmethod
    def default(cls, **overrides: Any) -> AlignConfig:
        """This library's settings."""
        return cls(**overrides)

    @classmethod
    def paper(cls, **overrides: Any) -> AlignConfig:
        """What the paper describes: ELBO weights -lambda'(t), classes in the given order.

        Layers and collecting timesteps are the model's own where it has any.
        """
        return cls(**_PAPER | {"elbo_weighting": "likelihood"} | overrides)

    @classmethod
    def official(cls, **overrides: Any) -> AlignConfig:
        """What the authors' released code computes.

        On SDXL that code divides 0 by 0 when it weights self-attention; there, this preset applies
        the mean self-attention twice. On SD3 it follows the code's path for flow models.
        """
        flow = {
            "self_attention": "twice",
            "image_only_attention": True,
            "cross_weights": "gaussian",
            "elbo_weighting": "native",
            "text_encoders": "clip",
        }
        settings = _PAPER | {
            "cross_weights": "resolution",
            "elbo_timesteps": tuple(range(1, 1000, 50)),
            "collect_timesteps": tuple(range(20, 201, 20)),
            "self_attention": "up-after-all",
            "by_family": {  # what the caller asks for holds on every family
                family: {key: value for key, value in fields.items() if key not in overrides}
                for family, fields in (("sdxl", {"self_attention": "twice"}), ("sd3", flow))
            },
        }
        return cls(**settings | overrides)

    @classmethod
    def fast(cls, **overrides: Any) -> AlignConfig:
        """A quarter of the ELBO's timesteps, where they say most, and half of the collecting ones.

        Fewer timesteps make the evidence noisier, so it is blurred more.
        """
        few: dict[str, Any] = {"elbo_steps": 5, "elbo_range": (0.2, 0.8), "collect_steps": 5}
        return cls(**few | {"evidence_blur": 3 / 32} | overrides)

    @classmethod
    def uncalibrated(cls, **overrides: Any) -> AlignConfig:
        """Algorithm 1 without lines 3 and 7: attention alone."""
        return cls(**{"method": "attention", "calibrate": "none"} | overrides)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> AlignConfig:
        """The preset of that name, one of ``PRESETS``."""
        check_choice("preset", name, PRESETS)
        built: AlignConfig = getattr(cls, name)(**overrides)
        return built

    @property
    def by_position(self) -> bool:
        """Whether the ELBO's passes are asked where they differ, in a resolved config."""
        asked = (self.calibrate == "evidence", self.cross_weights == "agreement")
        return any(asked) or self.absent == "drop"

    @property
    def measured(self) -> bool:
        """Whether the ELBO's passes are made at all, in a resolved config."""
        return self.calibrate != "none" or self.by_position

    @property
    def reads_raw_losses(self) -> bool:
        """Whether maps depend on errors whose size guidance changes, in a resolved config."""
        likelihood = self.method == "likelihood" and bool(self.leave_one_out)
        by_size = self.by_position and self.evidence_form == "error"
        return self.calibrate == "elbo" or by_size or likelihood

    @property
    def collect_count(self) -> int:
        """How many timesteps attention is collected at."""
        return len(self.collect_timesteps or ()) or self.collect_steps

    @property
    def elbo_count(self) -> int:
        """How many timesteps the ELBO visits."""
        return len(self.elbo_timesteps or ()) or self.elbo_steps

    def resolved(self, family: str = "", settings: Mapping[str, Any] | None = None) -> AlignConfig:
        """The config that applies to a model of that family with settings of its own.

        ``by_family`` is applied and emptied; what is still None comes from ``settings``
        (`MODEL_SETTINGS`), then from `FALLBACK`.
        """
        chosen = self
        if self.by_family:
            own = dict(self.by_family.get(family, {}))
            chosen = dataclasses.replace(self, **own, by_family={})
        known = {name: value for name, value in (settings or {}).items() if value is not None}
        for name in known:
            check_choice("a model's setting", name, MODEL_SETTINGS)
        method = chosen.method or FALLBACK["method"]
        for name in BY_METHOD:
            if isinstance(known.get(name), Mapping):
                value = known[name].get(method)
                known[name] = FALLBACK[name] if value is None else value
        free: dict[str, Any] = {
            name: known.get(name, otherwise)
            for name, otherwise in FALLBACK.items()
            if getattr(chosen, name) is None
        }
        collecting = (chosen.collect_strategy, chosen.collect_range, chosen.collect_timesteps)
        if collecting == (None, None, None):
            free["collect_range"] = known.get("collect_range")
        if chosen.leave_one_out is None:
            free["leave_one_out"] = not free.get("distilled", chosen.distilled)
        changes = {name: value for name, value in free.items() if getattr(chosen, name) != value}
        return dataclasses.replace(chosen, **changes) if changes else chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; ``AlignConfig(**config.to_dict())`` equals the config."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["by_family"] = {family: dict(changes) for family, changes in self.by_family.items()}
        if isinstance(self.cross_weights, Mapping):
            values["cross_weights"] = dict(self.cross_weights)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def _plain_weights(given: Any) -> Any:
    """Weights as floats; a name, or None, as it is."""
    if given is None or isinstance(given, str):
        return given
    try:
        if isinstance(given, Mapping):
            return {str(name): float(weight) for name, weight in given.items()}
        return tuple(map(float, given))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cross_weights is {brief(given)}; allowed: a name, numbers by resolution or by layer"
        ) from error
