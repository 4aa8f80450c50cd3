"""Body: the base of what a request's JSON is checked by, and the values that its parts share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trtspec.config.strict import Foreign
from trtspec.serve import unsupported

Text = Annotated[str, Field(min_length=1)]
# fail_fast: one error a list, or a long list of wrong items would become a longer one of errors.
Texts = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=1024)]


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_json(value: Any) -> Any:
    """Python reads NaN and numbers beyond all bounds, such as 1e999, which no answer can repeat."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError("it is nested too deep, or has a number that is not finite") from None
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_is_json)]
Integer = Annotated[int, BeforeValidator(_whole)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=1024)]
# Every stop string is looked for after every token.
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=16)]


class Body(BaseModel):
    """Types are strict and every field is named; see `unsupported` for the others."""

    model_config = ConfigDict(extra="forbid", strict=True)
    foreign: ClassVar[Mapping[str, Foreign]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        return unsupported.without_unsupported(data, known, cls.foreign)
