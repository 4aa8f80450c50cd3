"""The model card of a trained head."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trtspec.builder.token_choice import DraftVocabulary
from trtspec.train.measure import Measured
from trtspec.train.plan import TrainingPlan
from trtspec.train.trainer import HeldOut, Schedule


@dataclass(frozen=True)
class Card:
    """The facts about a head. ``step``: the last one that was trained. ``measured``: with the
    engine, or why not. ``versions``: of packages, as they report them."""

    plan: TrainingPlan
    title: str
    command: str
    schedule: Schedule
    step: int
    data: str
    vocabulary: DraftVocabulary
    held_out: HeldOut
    measured: Measured | str
    versions: str

    def text(self) -> str:
        plan, schedule = self.plan, self.schedule
        target = plan.target
        size = self.vocabulary.size(target.config.vocab_size)
        layers = list(plan.recipe.capture_layers(target.config))
        measured = self.measured if isinstance(self.measured, str) else self.measured.describe()
        agreement = ", ".join(f"{rate:.3f}" for rate in self.held_out.agreement)
        method, speculation = plan.options.method, json.dumps(plan.speculation("<this folder>"))
        proposes = (
            f"{size:,} of {target.config.vocab_size:,} tokens, {self.vocabulary.coverage:.2%} of "
            "a text"
        )
        return f"""# {self.title}

A draft for {target.name} (method `{method}`), trained by trtspec-train, in the layout of NVIDIA
ModelOpt's export, bfloat16. It reads the outputs of the target's layers {layers}; the embedding is
the target's.

```python
LLM("<{target.name}>", speculative_config={speculation})
```

| | |
|---|---|
| Target | {target.name}, fingerprint {target.fingerprint} |
| Data | {self.data} |
| Trained | {self.step:,} of {schedule.steps:,} steps of about {schedule.rows:,} tokens |
| Proposes | {proposes} |
| Held-out loss | {self.held_out.loss:.3f} nats ({plan.recipe.loss}) |
| Held-out agreement | {agreement} (by position, in answers; among the tokens it proposes) |
| Acceptance length | {measured} |
| Seeds | {schedule.seed} for data, weights and order |
| Command | `{self.command}` |
| Made with | {self.versions} |
"""
