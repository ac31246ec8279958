"""What request fields are made of: text that can be stored, and models that refuse what they do not know."""

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.text import unstorable


class Input(BaseModel):
    """A request body: unknown fields are refused, and nothing is converted (``"5"`` is not 5)."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _storable(value: str) -> str:
    if (problem := unstorable(value)) is not None:
        raise ValueError(problem)
    return value


def _one_line(value: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise ValueError("contains a control character; it must be one line of text")
    return value


PlainText = Annotated[str, AfterValidator(_storable)]
"""Any valid Unicode text without NUL."""

Line = Annotated[PlainText, AfterValidator(_one_line)]
"""Text without line breaks or other control characters."""


def at_most_bytes(limit: int) -> AfterValidator:
    """A bound on the length in UTF-8, which is what is stored and sent to a model."""

    def check(value: str) -> str:
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > limit:
            raise ValueError(f"is {size} bytes long in UTF-8; at most {limit} are allowed")
        return value

    return AfterValidator(check)


def not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty or blank")
    return value


def refuse(field: str, message: str, *, code: str = "invalid_input", **details: Any) -> InvalidInput:
    """The error for a field that is well-formed but cannot be meant."""
    return InvalidInput(f"{field}: {message}", code=code, errors=[{"field": field, "message": message}], **details)
