"""TypicalAcceptanceConfig: Medusa's lossy acceptance rule, used only on request."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class TypicalAcceptanceConfig:
    """LOSSY: the text is then not the target's own. A draft is accepted if the target gives it more
    than ``min(posterior_threshold, posterior_alpha * exp(-entropy))``, whatever the target would
    have sampled there (Medusa's typical acceptance, section 3.3 of arXiv 2401.10774); the longest
    path of such drafts wins. At temperature 0 drafts are accepted by equality as usual."""

    posterior_threshold: float = 0.09
    posterior_alpha: float = 0.3

    def __post_init__(self) -> None:
        for name in ("posterior_threshold", "posterior_alpha"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ConfigError(f"{name}={value} must be above 0 and at most 1")
