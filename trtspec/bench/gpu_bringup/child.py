"""The process of one part: ``python -m trtspec.bench.gpu_bringup.child <part and place in JSON>``.

It writes to the journal before a case begins and when it is over, so that it shows what ended this
process.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from trtspec.bench.gpu_bringup.journal import SKIPPED, Journal, key_text
from trtspec.bench.gpu_bringup.part import Part, PartSkipped, Place
from trtspec.child_python import end_with_parent

_STICKY = ("CUDA error", "AcceleratorError", "CUBLAS_STATUS", "out of memory")
"""Words in errors after which a process may have lost its device, or memory of it: it exits, and
another one continues. A process too many costs seconds; figures after such an error mislead."""


def run_cases(part: Part, place: Place) -> None:
    """Measure the cases that this run has not tried and none has done; failed ones last."""
    journal = Journal(place.output, place.device)
    known = journal.result(part.name)
    try:
        cases = part.cases(place)
    except PartSkipped as reason:
        journal.add(part.name, is_over=True, status=SKIPPED, error=str(reason))
        return
    journal.add(part.name, total=len(cases))
    done = {text for text, row in known.rows.items() if "error" not in row} | known.tried
    left = [case for case in cases if key_text(case.key) not in done]
    for case in sorted(left, key=lambda case: key_text(case.key) in known.rows):
        journal.add(part.name, under_way=case.key)
        said: dict[str, Any]
        try:
            said = {"figures": case.measure()}
        except Exception as error:
            traceback.print_exc()
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            said = {"error": f"{type(error).__name__}: {error} ({where})"}
        journal.add(part.name, key=case.key, **said)
        if any(word in said.get("error", "") for word in _STICKY):
            return
    journal.add(part.name, is_over=True)


if __name__ == "__main__":
    end_with_parent()
    job = json.loads(sys.argv[1])
    at = Place(Path(job["output"]), Path(job["root"]), job["device"])
    run_cases(Part(**job["part"]), at)
