"""Values to JSON and back, by pydantic, with type adapters that are made once a process.

The SDK makes a payload converter anew for each workflow and each context in which it decodes, and
with it the SDK's pydantic converter forgets its adapters; making one costs more than a step does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

_JSON = PydanticJSONPlainPayloadConverter()


class PayloadConverter(CompositePayloadConverter):
    """The SDK's converters, JSON by a pydantic one that all instances share."""

    def __init__(self) -> None:
        super().__init__(
            *(
                _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    """The type adapter of a message, for values that arrive undecoded (details of failures)."""
    return TypeAdapter(kind)
