"""DraftWeights: how a draft keeps its weights, where that is not as its target does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from trtspec.config.build_config import BuildConfig
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

AUTO = "auto"


@strict_config()
@dataclass(frozen=True)
class DraftWeights:
    """The options of `BuildConfig` about weights, of one draft."""

    weight_dtype: str = AUTO
    weight_group_size: int | None = None
    head_weight_dtype: str = AUTO
    activation_dtype: str = AUTO

    @classmethod
    def of(cls, build: BuildConfig) -> DraftWeights:
        """Those that a build has."""
        return cls(
            build.weight_dtype,
            build.weight_group_size,
            build.head_weight_dtype,
            build.activation_dtype,
        )

    def within(self, build: BuildConfig) -> BuildConfig:
        """The build, with these in place of its own."""
        return replace(build, **asdict(self))

    def check_built(self, built: DraftWeights | None) -> None:
        """ConfigError if an engine's draft was built with other weights than those asked for here;
        what is left open fits all."""
        found = built or DraftWeights()
        for name, asked in asdict(self).items():
            if asked not in (AUTO, None) and asked != getattr(found, name):
                raise ConfigError(
                    f"{name}={asked} was asked for, the engine's draft has "
                    f"{getattr(found, name)}; leave it out or rebuild the engine"
                )
