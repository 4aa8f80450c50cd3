"""The tensors of one quantised linear layer, found by the suffixes of its name and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import DTYPES, TensorHeader
from checkpoint_converters.quantised.groups import Groups
from trtspec.errors import CheckpointError

FLOATS = tuple(DTYPES)
AGAIN = "get the checkpoint again, or quantise the model anew"


def scale_type(scales: TensorHeader) -> str:
    """The dtype that holds scales exactly: float16 or float32."""
    return "float16" if scales.dtype == "F16" else "float32"


@dataclass(frozen=True)
class Module:
    """One layer: its ``parts`` by role, such as ``weight_scale`` for ``NAME.weight_scale``."""

    name: str
    scheme: str
    parts: Mapping[str, TensorHeader]

    def has(self, role: str) -> bool:
        return role in self.parts

    def part(
        self, role: str, dtypes: Collection[str], rank: int, asked_by: str = ""
    ) -> TensorHeader:
        """A part with this number of dimensions; CheckpointError if it is missing or different.
        ``asked_by``: the setting that requires it."""
        if role not in self.parts:
            why = f", which {asked_by} asks for" if asked_by else ""
            raise CheckpointError(
                f"{self.file}: layer {self.name} is quantised ({self.scheme}), but its tensor "
                f"{self.name}.{role} is missing{why}; {AGAIN}"
            )
        header = self.parts[role]
        if header.dtype not in dtypes:
            raise self.refuse(role, f"dtype {header.dtype}", f"be {' or '.join(dtypes)}")
        if len(header.shape) != rank:
            raise self.refuse(role, f"shape {list(header.shape)}", f"have {rank} dimensions")
        return header

    def require_shape(self, role: str, shape: tuple[int, ...]) -> None:
        """Raise CheckpointError unless a part has this shape."""
        found = self.parts[role].shape
        if found != shape:
            raise self.refuse(role, f"shape {list(found)}", f"have {list(shape)}")

    def groups(self, role: str, inputs: int, count: int, said: int | None) -> Groups:
        """The groups of the inputs, as many as the tensor ``role`` has, of the size in a config
        (`Said.group_size`).

        If the config gives no size, they must be equal, with a power of two as size: no two such
        sizes yield the same number of groups, not even with a shorter last one.

        Raises:
            CheckpointError: groups of that size do not yield that number.
        """
        size = said
        if said is None:
            whole, rest = divmod(inputs, max(count, 1))
            if count < 1 or rest or (count > 1 and whole & (whole - 1)):
                raise self.refuse(
                    role,
                    f"{count} groups",
                    f"divide its {inputs} input features into groups of a power of two, or the "
                    "config must say group_size",
                )
            size = whole
        assert size is not None
        groups = Groups.of(inputs, size)
        if groups.count != count:
            raise self.refuse(
                role,
                f"{count} groups",
                f"have {groups.count}, as groups of {size or inputs} (the config's group_size) "
                f"divide its {inputs} input features",
            )
        return groups

    def finite(self, role: str) -> Tensor:
        """A part in float32; CheckpointError if a value is NaN or infinite."""
        values = self.parts[role].read().float()
        if not torch.isfinite(values).all():
            count = int((~torch.isfinite(values)).sum())
            raise self.refuse(role, f"{count} values that are NaN or infinite", "be finite")
        return values

    def one_value(self, role: str) -> Tensor:
        """A part that is a single positive number, in float32."""
        values = self.finite(role)
        if values.numel() != 1 or values <= 0:
            raise self.refuse(role, f"values {values.tolist()!s:.40}", "be one positive number")
        return values.reshape(())

    def order(self, role: str, groups: Groups) -> Tensor | None:
        """The input features ``[K] i32`` sorted by their groups in a part; None if they are sorted
        already. CheckpointError for groups of other sizes."""
        index = self.parts[role].read().long()
        wrong = index[(index < 0) | (index >= groups.count)]
        if len(wrong):
            last = groups.count - 1
            raise self.refuse(role, f"group {int(wrong[0])}", f"name groups 0 to {last}")
        sizes, wanted = torch.bincount(index, minlength=groups.count), groups.lengths
        if (sizes != wanted).any():
            odd = int((sizes != wanted).nonzero()[0])
            each = f"give each {int(wanted[0])}"
            if wanted[-1] != wanted[0]:
                each += f", and the last one {int(wanted[-1])}"
            raise self.refuse(role, f"{int(sizes[odd])} input features in group {odd}", each)
        order = torch.argsort(index, stable=True).int()
        return None if torch.equal(order, torch.arange(len(order))) else order

    def refuse(self, role: str, found: str, wanted: str) -> CheckpointError:
        """An error about a part, to raise."""
        return CheckpointError(
            f"{self.file}: tensor {self.name}.{role} ({self.scheme}) has {found}; it must "
            f"{wanted}: {AGAIN}"
        )

    @property
    def file(self) -> str:
        return str(next(iter(self.parts.values())).file)
