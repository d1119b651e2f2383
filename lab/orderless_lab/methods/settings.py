"""Settings: the values that `--set key=value` changes.

A suite has a model of settings (`RunSettings` and what derives from it), and a method may have one
of its own (`Settings`). All keys are in one namespace: `values.ewc_strength` is a setting of the
method `ewc`, kept beside those of the suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from orderless.errors import UserError, did_you_mean

from .registry import BY_CHOICE, METHODS, Method

Value = bool | int | float | str | None
Own = TypeVar("Own", bound="Settings")

Count = Annotated[int, Field(ge=1, le=10**9)]  # of steps or samples
Size = Annotated[int, Field(ge=1, le=10**6)]  # of what is held in memory at once
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what `torch.Generator` accepts
Positive = Annotated[float, Field(gt=0)]
Number = Annotated[float, Field(ge=0)]

# settings that do not change results
IMMATERIAL = frozenset({"chunk_size", "test_batch", "score_after", "exact_block"})


class Settings(BaseModel):
    """A group of settings; the string below a field says what it does."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(sentence(error)) from None


def sentence(error: ValidationError) -> str:
    """The first problem that pydantic found, with the key and the value."""
    first = error.errors()[0]
    text = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # of several settings together
        return text
    return f"{first['loc'][0]}={first['input']}: {text[0].lower()}{text[1:]}"


class RunSettings(Settings):
    """What all suites have in common. A method's own settings are kept by key as well."""

    model_config = ConfigDict(extra="allow")
    family: ClassVar[list[str]] = []  # the names of the methods of these suites
    held_out: ClassVar[dict[str, Value]] = {"validation": 0.1}  # for `tune`: not what is reported

    particles: Size = 100
    """N, for the methods that have particles."""
    init: Literal["fresh", "perturb", "fresh+noise"] = "fresh"
    """"fresh" networks; "perturb": one network plus noise, as in the paper's code; "fresh+noise":
    fresh networks, each with noise, as in its text."""
    perturb_low: Number = 0.001
    """Smallest radius of the initial noise, with init=perturb or fresh+noise."""
    perturb_high: Number = 0.04
    """Largest radius of the initial noise, with init=perturb or fresh+noise."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """"sgd" or "adam", for every method that takes gradients."""
    lr: Positive = 1e-3
    """SGD's learning rate, the paper's sigma^2."""
    adam_lr: Positive = 1e-3
    """Adam's learning rate."""
    schedule: Literal["constant", "1/task"] = "constant"
    """The learning rate at the k-th task: "constant", or divided by k ("1/task")."""
    batch_size: Size = 128
    """Samples per step."""
    epochs: Count = 1
    """Passes over each task's data."""
    iterations: Count | None = None
    """Steps per task instead of epochs."""
    weighting: Literal["trapezoid", "linearized"] = "trapezoid"
    """How the filter weighs: "trapezoid" (the paper's) or "linearized"."""
    loss_scale: Positive = 1.0
    """Multiplies the loss in the weights; 1 is the paper's."""
    min_ess: Number | None = None
    """Temper weights for predictions to an effective sample size of at least this."""
    order_seed: Seed = 0
    """Seed of the random task orders; order 0 is always the natural one."""
    batch_seed: Seed | None = None
    """Seed of the batches; None: the seed of the cell, as for the networks."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """"float32", "tf32" or "bf16"."""
    chunk_size: Size | None = None
    """At most this many particles at a time."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.perturb_low > self.perturb_high:
            raise ValueError(
                f"perturb_low must be at most perturb_high={self.perturb_high}, "
                f"got {self.perturb_low}"
            )
        if self.min_ess is not None and not 1 <= self.min_ess <= self.particles:
            raise ValueError(
                f"min_ess must lie between 1 and particles={self.particles}, got {self.min_ess}"
            )
        self._check_own()
        return self

    def _check_own(self) -> None:
        """Convert the methods' own settings to their types; refuse keys that nobody knows."""
        known = self.known()
        for key in self.own_values:
            if key not in known:
                raise ValueError(unknown_key(key, known))
        for model in self.models():
            checked = self.own(model)
            for key in model.model_fields.keys() & self.own_values.keys():
                self.own_values[key] = getattr(checked, key)

    @property
    def own_values(self) -> dict[str, Value]:
        """The methods' own settings that are not left at their defaults."""
        assert self.model_extra is not None
        return self.model_extra

    @classmethod
    def models(cls) -> list[type[Settings]]:
        """The settings of the methods of these suites."""
        found = (METHODS[name].settings for name in cls.family if name in METHODS)
        return list(dict.fromkeys(model for model in found if model is not None))

    @classmethod
    def known(cls) -> dict[str, FieldInfo]:
        """All settings by key."""
        found = dict(cls.model_fields)
        for model in cls.models():
            for key, field in model.model_fields.items():
                if key in found:
                    raise UserError(
                        f"two settings are called {key}: rename the one in {model.__name__}"
                    )
                found[key] = field
        return found

    def own(self, model: type[Own]) -> Own:
        """A method's own settings."""
        return model(**{key: v for key, v in self.own_values.items() if key in model.model_fields})

    def flat(self, method: Method | None = None) -> dict[str, Value]:
        """All settings by key; with a method, without those of other methods."""
        found = {key: getattr(self, key) for key in type(self).model_fields}
        models = self.models() if method is None else [method.settings] if method.settings else []
        for model in models:
            found |= self.own(model).model_dump()
        return found

    def read_by(self, method: Method) -> dict[str, Value]:
        """The settings on which a method's results depend."""
        found = self.flat(method).items()
        return {k: v for k, v in found if k not in IMMATERIAL and k in self.keys_of(method)}

    def keys_of(self, method: Method) -> set[str]:
        """The settings that a method reads."""
        return set(self.flat(method)) - BY_CHOICE.difference(method.reads)

    def differs(self, recorded: Mapping[str, Any], method: Method) -> str | None:
        """The first setting with another result, as "key=recorded value, not value", or None."""
        for key, value in self.read_by(method).items():
            if recorded.get(key) != value:
                return f"{key}={recorded.get(key)}, not {value}"
        return None

    def changed(self, **changes: Any) -> Self:
        return type(self)(**{**self.model_dump(), **changes})

    def with_text(self, assignments: list[str]) -> Self:
        """Apply `key=value` texts from the command line."""
        known = self.known()
        changes: dict[str, Value] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise UserError(f"--set takes key=value, got {assignment!r}")
            if key not in known:
                raise UserError(unknown_key(key, known))
            missing = text.lower() == "none" and NoneType in get_args(known[key].annotation)
            changes[key] = None if missing else text
        return self.changed(**changes)

    def seed_of(self, seed: int, order_index: int) -> int:
        """The seed of the networks of a cell; in ProcGen also of the actions."""
        return seed

    def seed_of_batches(self, seed: int) -> int:
        """The seed of the batches of a cell."""
        return seed if self.batch_seed is None else self.batch_seed

    def seed_of_tasks(self, seed: int) -> int:
        """The seed of the tasks of a cell; 0 where all cells have the same tasks."""
        return 0


def unknown_key(key: str, known: Mapping[str, FieldInfo]) -> str:
    hint = did_you_mean(key, known)
    return f"{key!r} is no setting here{hint}: `orderless settings` lists them"


def sentences(model: type[Settings]) -> Iterator[tuple[str, str]]:
    """Each key of a model with the sentence below its field."""
    for key, field in model.model_fields.items():
        yield key, field.description or ""
