"""Each rule on tiny trees: what breaks it is reported, what looks like it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from .rules import violations
from .violation import REMEDIES
from .walk import Tree

ENGINE, SHARED = "trtspec/engine/open.py", "trtspec/speculative/base.py"
NATIVE = "cpp/src/runtime/a.cpp"
SERVE = "trtspec/serve/routes.py"
EAGLE, HYBRID = "trtspec/speculative/eagle/drafter.py", "trtspec/speculative/hybrid/union.py"


def report(root: Path, files: dict[str, str]) -> list[tuple[str, str, str]]:
    """The violations of a tree of these files, READMEs given everywhere but at "bare" folders."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(root).parents[:-1]:
            if "bare" not in folder.parts and len(folder.parts) <= 2:
                (root / folder / "README.md").touch()
    return [found.key for found in violations(Tree(root))]


BROKEN = [
    ("order", "serve", {ENGINE: "import trtspec.serve.app"}),
    ("order", "engine", {"trtspec/executor/a.py": "from trtspec.engine.open import open_it"}),
    ("order", "executor", {"trtspec/backends/a.py": "from trtspec import executor"}),
    ("order", "LLM", {ENGINE: "from trtspec import LLM"}),  # by the front door
    ("order", "unknown folder misc", {"trtspec/misc/a.py": ""}),
    ("relative-import", "b", {"trtspec/engine/a.py": "from .b import c"}),
    ("function-import", "json", {ENGINE: "def f():\n    import json"}),
    (
        "function-import",
        "json",
        {ENGINE: "async def f():\n    if 1:\n        from json import loads"},
    ),
    ("function-import", "json", {ENGINE: "f = lambda: __import__('json')"}),
    (
        "function-import",
        "trtspec.engine.b",
        {ENGINE: "def f():\n    importlib.import_module('trtspec.engine.b')"},
    ),
    ("converters", "trtspec.ops.tree", {"checkpoint_converters/a.py": "import trtspec.ops.tree"}),
    ("converters", "trtspec", {"checkpoint_converters/a.py": "from trtspec import log"}),
    ("converters", "checkpoint_converters", {ENGINE: "import checkpoint_converters"}),
    ("converters", "checkpoint_converters", {EAGLE: "from checkpoint_converters import names"}),
    ("optional-dependency", "onnx", {ENGINE: "import onnx.helper"}),
    ("optional-dependency", "surprise", {ENGINE: "try:\n    import surprise\nexcept E:\n    pass"}),
    (
        "optional-dependency",
        "matplotlib, no error that names the extra",
        {"trtspec/bench/report/picture.py": '"""pip install trtspec[bench]"""\nimport matplotlib'},
    ),
    (
        "module-cycle",
        "trtspec.ops.b",
        {"trtspec/ops/a.py": "import trtspec.ops.b", "trtspec/ops/b.py": "import trtspec.ops.a"},
    ),
    (
        "module-cycle",  # of three, one of the imports for types only, one in a function
        "trtspec.ops.c",
        {
            "trtspec/ops/a.py": "from trtspec.ops import b",
            "trtspec/ops/b.py": "if TYPE_CHECKING:\n    from trtspec.ops.c import x",
            "trtspec/ops/c.py": "def f():\n    from trtspec.ops import a",
        },
    ),
    (
        "folder-cycle",  # no module is in a cycle
        "trtspec.bench.two.b",
        {
            "trtspec/bench/one/a.py": "import trtspec.bench.two.b",
            "trtspec/bench/two/b.py": "",
            "trtspec/bench/two/c.py": "import trtspec.bench.one.d",
            "trtspec/bench/one/d.py": "",
        },
    ),
    ("method-name", "eagle", {ENGINE: "from trtspec.speculative.eagle import anything"}),
    ("method-name", "suffix", {ENGINE: "import trtspec.speculative.suffix"}),
    (
        "method-name",
        "suffix",
        {ENGINE: "from trtspec.speculative import suffix", "trtspec/speculative/suffix.py": ""},
    ),
    ("method-name", "mtp", {ENGINE: "from trtspec.config.any import read_mtp"}),
    ("method-name", "p_eagle", {ENGINE: "class PEagleThing: ..."}),
    ("method-name", "eagle3", {ENGINE: "class _MyEagle3Thing: ..."}),
    ("method-name", "ngram", {ENGINE: "ops.NGramIndex()"}),
    ("method-name", "p_eagle", {ENGINE: "f('P-EAGLE')"}),
    ("method-name", "eagle", {ENGINE: "case = 'eagle'"}),
    ("method-name", "pard", {ENGINE: "match x:\n    case 'pard':\n        pass"}),
    ("method-name", "auto", {ENGINE: "if config.method == 'auto': ..."}),
    ("method-name", "auto", {ENGINE: "if config.method in ('auto', x): ..."}),
    ("method-name", "suffix", {ENGINE: "f({'method': 'suffix'})"}),
    ("method-name", "hybrid", {ENGINE: "f(method='hybrid')"}),
    ("method-name", "hybrid", {ENGINE: "def f(method='hybrid'): ..."}),
    ("method-name", "hybrid", {ENGINE: "def method():\n    return 'hybrid' if x else y"}),
    ("method-name", "draft_model", {ENGINE: "METHODS = ('draft_model', 'eagle')"}),
    ("method-name", "suffix", {ENGINE: "f = {'suffix': 1, 'medusa': 2}"}),
    ("method-name", "auto", {ENGINE: "add('--method', default='auto')"}),
    ("method-name", "medusa", {"checkpoint_converters/draft.py": "x = 'medusa'"}),
    ("method-face", "eagle", {HYBRID: "from trtspec.speculative.eagle.drafter import x"}),
    ("method-face", "eagle", {HYBRID: "x = 'eagle'"}),
    ("method-face", "eagle", {SHARED: "class EagleThing: ..."}),
    ("method-face", "eagle", {SHARED: "from trtspec.speculative.eagle import EagleThing"}),
    (
        "method-face",
        "eagle3",
        {HYBRID: "from trtspec.config.x import Eagle3"},
    ),
    ("backend-name", "tensorrt", {ENGINE: "if x == 'tensorrt': ..."}),
    ("backend-name", "eager", {ENGINE: "def f(*, backend='eager'): ..."}),
    ("backend-name", "aoti", {ENGINE: "class AotiSession: ..."}),
    (
        "backend-face",
        "onnx",
        {"trtspec/backends/a.py": "import trtspec.backends.onnx.graph"},
    ),
    ("backend-face", "aoti", {"trtspec/backends/base.py": "x = 'aoti'"}),
    ("format-name", "int8", {ENGINE: "from trtspec.formats.int8 import Int8"}),
    ("format-name", "plain", {ENGINE: "weight_format = 'plain'"}),
    ("format-face", "fp8", {"trtspec/formats/base.py": "x = 'fp8'"}),
    ("family-name", "llama", {ENGINE: "x = 'LlamaForCausalLM'"}),
    ("family-name", "qwen3", {ENGINE: "from transformers import Qwen3Config"}),
    ("family-name", "qwen2", {"checkpoint_converters/draft.py": "kind = 'qwen2'"}),
    ("family-face", "llama", {"checkpoint_converters/families/qwen3.py": "x = 'llama'"}),
    ("native-name", "eagle", {NATIVE: 'if (name == "eagle") return;'}),
    ("native-name", "suffix", {NATIVE: 'constexpr const char* kAll[] = {\n R"(suffix)"};'}),
    ("native-name", "p_eagle", {"cpp/benchmarks/a.hpp": 'char c = \'"\'; f("P-EAGLE");'}),
    ("native-name", "onnx", {"plugins/torch/a.cu": 'x = 1\'000 + f("onnx");'}),
    ("native-name", "llama", {NATIVE: 'x = "LlamaForCausalLM";'}),
    ("native-name", "int8", {NATIVE: '/* "*/ x = "int8";'}),
    (
        "native-name",
        "aoti, allowed and not there",
        {"cpp/include/trtspec/runtime/backend.hpp": '"onnx" "tensorrt"'},
    ),
    ("executor-drafter", "no Protocol", {"trtspec/executor/step/drafter.py": "class Drafter: ..."}),
    (
        "executor-drafter",
        "TreeDrafter",
        {"trtspec/executor/a.py": "from trtspec.ops.drafts import TreeDrafter"},
    ),
    ("server-engine", "trtspec.llmapi.llm", {SERVE: "from trtspec.llmapi.llm import LLM"}),
    ("server-engine", "trtspec.llmapi", {SERVE: "from trtspec.llmapi import handle"}),
    *(
        (
            "layer-part",
            "CSpec",
            {"trtspec/config/mixers/c.py": "class CSpec: ...", file: text},
        )
        for file, text in (
            ("trtspec/models/a.py", "isinstance(m, (int, c.CSpec))"),
            ("checkpoint_converters/a.py", "x = issubclass(m, CSpec)"),
            ("trtspec/models/a.py", "type(m) is CSpec"),
            ("trtspec/train/a.py", "match m:\n    case CSpec(): ..."),
        )
    ),
    ("file-size", "lines above 400", {"trtspec/ops/a.py": "\n" * 401}),
    ("file-size", "lines above 400", {"cpp/src/deep/down/a.cpp": "\n" * 401}),
    ("file-size", "lines above 400", {"plugins/kernels/a.cuh": "\n" * 401}),
    ("file-size", "lines above 400", {"tests/ops/test_a.py": "\n" * 401}),
    ("readme", "README.md", {"bare/a.py": ""}),
    ("readme", "README.md", {"cpp/bare/a.cpp": ""}),
]


@pytest.mark.parametrize(("rule", "what", "files"), BROKEN)
def test_reported(rule: str, what: str, files: dict[str, str], tmp_path: Path) -> None:
    found = report(tmp_path, files)
    assert (rule, what) in {(key[0], key[2]) for key in found}, found


CLEAN: list[dict[str, str]] = [
    {ENGINE: "import trtspec.executor.loop\nfrom trtspec.errors import ConfigError"},
    {ENGINE: "import json\nif TYPE_CHECKING:\n    import ast", "trtspec/__init__.py": ""},
    {"trtspec/__init__.py": "from trtspec.speculative.eagle import EagleConfig\nx = ['eagle']"},
    {"checkpoint_converters/a.py": "from trtspec.config.model import M\nimport trtspec.errors"},
    {"trtspec/builder/a.py": "import checkpoint_converters"},
    {"trtspec/speculative/eagle/checkpoint.py": "import checkpoint_converters.names"},
    {
        "trtspec/backends/onnx/a.py": "import onnx",
        "trtspec/backends/onnx/b.py": "raise E('pip install trtspec[onnx]')",
    },
    {"trtspec/bench/peers/workers/w.py": "def f():\n    import vllm\n    return 'eagle3'"},
    {  # a diamond, and a face that imports what is behind it
        "trtspec/ops/a.py": "import trtspec.ops.b, trtspec.ops.c",
        "trtspec/ops/b.py": "import trtspec.ops.d.e",
        "trtspec/ops/c.py": "import trtspec.ops.d",
        "trtspec/ops/d/__init__.py": "from trtspec.ops.d.e import x",
        "trtspec/ops/d/e.py": "",
    },
    # Prose, docstrings, pieces of f-strings, flags and `__all__` name nothing.
    {ENGINE: '"""eagle"""\nx = f"eagle{n}"\nadd("--eagle")\ny = "an eagle flies"\n'},
    {ENGINE: '__all__ = ["DraftModel", "Eagle"]\nclass Beagle: ...\nclass Suffixed: ...\n'},
    # Everyday words away from their nouns.
    {ENGINE: "dtype = 'auto'\nif device == 'auto': ...\nf(backend='auto')\nd = {'suffix': 1}"},
    {ENGINE: "load(attn_implementation='eager')\nstyle = 'plain'\nlayers = {'type': 'hybrid'}"},
    {ENGINE: "keys = ('model', 'draft_model')\nfrom trtspec.config.x import SUFFIX, DRAFT_MODEL"},
    {
        ENGINE: "from transformers import AutoTokenizer\nclass HybridCache: ..."
        "\nclass DraftModel: ..."
    },
    {ENGINE: "x = torch.int8\nrope_type = 'llama3'"},
    {"trtspec/config/kv.py": "DTYPES = ('bf16', 'int8', 'fp8')"},
    # At home.
    {EAGLE: "class EagleDrafter: ...\nx = ('eagle', 'eagle3')\nfrom trtspec.ops.e import Eagle3"},
    {HYBRID: "from trtspec.speculative.eagle import Eagle\nimport trtspec.speculative.suffix"},
    {HYBRID: "from trtspec.speculative import eagle\nx = {'hybrid': 'auto'}"},
    {"trtspec/speculative/registry.py": "from trtspec.speculative.block import DFlash\nx = 'mtp'"},
    {"trtspec/backends/tensorrt/a.py": "from trtspec.backends.onnx import OnnxA\nx = 'tensorrt'"},
    {"trtspec/backends/tensorrt/a.py": "parser = trt.OnnxParser(network)"},
    {"trtspec/formats/int4.py": "from trtspec.formats.int8 import Int8\nclass Int4: ..."},
    {"checkpoint_converters/quantised/awq.py": "import json"},
    {"checkpoint_converters/families/mimo.py": "import checkpoint_converters.families.qwen2"},
    {"checkpoint_converters/families/__init__.py": "x = ('llama', 'qwen2')"},
    {
        "trtspec/speculative/mtp/families.py": "x = 'mimo'",
        "trtspec/serve/tools/a.py": "x = 'qwen3'",
    },
    {NATIVE: '// "eagle"\nf("an eagle flies", "--eagle"); /* "mtp" */ char c = \'"\';'},
    {"cpp/tests/runtime/a.cpp": 'x = "eagle";', "plugins/tensorrt/tests/a.cpp": '"onnx"'},
    {"cpp/src/suffix_tree.cpp": '"suffix"', "plugins/tensorrt/a.cpp": '"tensorrt"'},
    {
        "trtspec/config/feed_forwards/f.py": "class FSpec: ...",
        "trtspec/models/feed_forwards/f.py": "isinstance(f, FSpec)",
        "trtspec/train/a.py": "FSpec.maybe(f)\nisinstance(f, Other)\nx == FSpecs",
    },
    {"trtspec/executor/step/drafter.py": "class Drafter(Protocol): ...\nclass NoDrafter: ..."},
    {"trtspec/ops/a.py": "\n" * 400, "cpp/data/trace.jsonl": "\n" * 999},
    {"trtspec/lib/a.py": "\n" * 401, "build/bare/a.py": "import nothing", ".venv/x/a.py": ""},
]


@pytest.mark.parametrize("files", CLEAN)
def test_not_reported(files: dict[str, str], tmp_path: Path) -> None:
    assert report(tmp_path, files) == []


def test_every_rule_has_a_control() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(REMEDIES)


def test_one_import_of_two_spellings_counts_for_both(tmp_path: Path) -> None:
    found = report(tmp_path, {ENGINE: "from trtspec.config.mtp import MtpConfig, EagleConfig"})
    assert found.count(("method-name", ENGINE, "mtp")) == 2  # the module twice, once with its class
    assert found.count(("method-name", ENGINE, "eagle")) == 1
