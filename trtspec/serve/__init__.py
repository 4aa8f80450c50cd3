"""The OpenAI-compatible server over `LLM`: HTTP, streaming, limits, metrics, life cycle.

Importing any module of this folder needs the packages of the extra ``trtspec[serve]``.
"""

from importlib.util import find_spec

from trtspec.errors import ConfigError

_missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
if _missing:
    raise ConfigError(
        f"the server needs {', '.join(_missing)}; install them with: pip install 'trtspec[serve]'"
    )
