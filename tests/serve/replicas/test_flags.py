"""Flags of replicas: what they ask for, and what is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trtspec.commands.replica_flags import replica_options
from trtspec.commands.serve import llm_options, main, read_args
from trtspec.serve.replicas.settings import ReplicaSettings

RAY = ("trtspec-tiny", "--distributed-executor-backend", "ray")


@pytest.mark.parametrize("flag", ["-dp", "--dp-size", "--data-parallel-size", "--dp_size"])
def test_other_servers_flags_ask_for_replicas(flag: str) -> None:
    args = read_args([*RAY, flag, "3", "--routing-policy", "random", "-tp", "2"])
    asked = replica_options(args)
    assert asked == {"num_replicas": 3, "routing_policy": "random"}
    assert ReplicaSettings(**asked).max_replicas == 3
    assert llm_options(args)["tensor_parallel_size"] == 2


def test_options_of_ray_are_passed_on() -> None:
    scaling = '{"min_replicas": 0, "max_replicas": 4, "target_ongoing_requests": 16}'
    deployment = '{"ray_actor_options": {"num_cpus": 3}}'
    words = ["--autoscaling-config", scaling, "--ray-deployment-config", deployment]
    asked = replica_options(read_args([*RAY, *words, "--ray-address", "auto"]))
    assert asked is not None
    settings = ReplicaSettings(**asked)
    assert settings.autoscaling == {
        "min_replicas": 0, "max_replicas": 4, "target_ongoing_requests": 16,
    }  # fmt: skip
    assert settings.max_replicas == 4 and settings.may_be_none and settings.address == "auto"
    assert settings.deployment == {"ray_actor_options": {"num_cpus": 3}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-dp", "2"], "--data-parallel-size 2 is for replicas"),
        (["--routing-policy", "random"], "--routing-policy random is for replicas"),
        (
            ["-dp", "2", "--distributed-executor-backend", "mp"],
            "add --distributed",
        ),
        (["--distributed-executor-backend", "slurm"], "'slurm' is refused"),
        ([*RAY[1:], "-dp", "0"], "data_parallel_size=0 must be at least 1"),
        ([*RAY[1:], "--routing-policy", "telepathy"], "there are prefix_aware, random"),
        ([*RAY[1:], "--autoscaling-config", "{"], "--autoscaling-config is not JSON"),
        ([*RAY[1:], "-dp", "2", "--autoscaling-config", "{}"], "exclude each other"),
        ([*RAY[1:], "--autoscaling-config", '{"max_replicas": 0}'], "max_replicas=0 must be"),
        ([*RAY[1:], "--autoscaling-config", '{"max_replicas": "4"}'], "max_replicas='4' must be"),
        ([*RAY[1:], "--autoscaling-config", '{"max_replicas": null}'], "max_replicas=None must be"),
        ([*RAY[1:], "--ray-deployment-config", '{"num_replicas": 2}'], "num_replicas is not"),
        ([*RAY[1:], "--ray-deployment-config", '{"logging_config": {}}'], "logging_config is not"),
        ([*RAY[1:], "--ray-deployment-config", '{"ray_actor_options": 3}'], "=3 is no JSON object"),
    ],
)
def test_what_cannot_be_honoured(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trtspec-tiny", *words]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("trtspec-serve: ") and message in error and "\n" not in error


def test_without_ray_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    assert main([*RAY, "-dp", "2"]) == 1
    error = capsys.readouterr().err
    assert "--distributed-executor-backend ray needs ray" in error
    assert "pip install 'trtspec[ray]'" in error


def test_one_process_never_imports_ray() -> None:
    code = "import sys, trtspec.commands.serve; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
