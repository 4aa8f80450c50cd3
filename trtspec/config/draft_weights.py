"""DraftWeights: how a draft keeps its weights, where it differs from its target."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from trtspec.config.build_config import BuildConfig, full_dtype
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

AUTO = "auto"


@strict_config()
@dataclass(frozen=True)
class DraftWeights:
    """The weight options of `BuildConfig`, for one draft; auto and None leave them open."""

    weight_dtype: str = AUTO
    weight_group_size: int | None = None
    head_weight_dtype: str = AUTO
    activation_dtype: str = AUTO

    def __post_init__(self) -> None:
        for name in ("weight_dtype", "head_weight_dtype", "activation_dtype"):
            object.__setattr__(self, name, full_dtype(getattr(self, name)))

    @classmethod
    def of(cls, build: BuildConfig) -> DraftWeights:
        """The weight options of a build."""
        return cls(
            build.weight_dtype,
            build.weight_group_size,
            build.head_weight_dtype,
            build.activation_dtype,
        )

    def within(self, build: BuildConfig) -> BuildConfig:
        """The build config with these options instead of its own."""
        return replace(build, **asdict(self))

    @property
    def is_open(self) -> bool:
        """Whether nothing was requested."""
        return self == DraftWeights()

    def check_built(self, built: DraftWeights | None) -> None:
        """Raise ConfigError if an engine's draft was built with other weights than requested here;
        open options match anything."""
        found = built or DraftWeights()
        for name, asked in asdict(self).items():
            if asked not in (AUTO, None) and asked != getattr(found, name):
                raise ConfigError(
                    f"{name}={asked} was asked for, the engine's draft has "
                    f"{getattr(found, name)}; leave it out or rebuild the engine"
                )
