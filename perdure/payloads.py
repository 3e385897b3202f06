"""Values to JSON and back, by pydantic, with type adapters that are made once a process.

The SDK makes a payload converter anew for each workflow and each context in which it decodes,
seven times a step. The SDK's pydantic converter then forgets its adapters, of which one costs more
than a step does; ours keeps them, and is itself made once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from pydantic import TypeAdapter
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

_JSON = PydanticJSONPlainPayloadConverter()


class PayloadConverter(CompositePayloadConverter):
    """The SDK's converters, JSON by a pydantic one. There is one object of this class alone."""

    _only: ClassVar[PayloadConverter | None] = None

    def __new__(cls) -> PayloadConverter:
        if cls._only is None:
            cls._only = super().__new__(cls)
            CompositePayloadConverter.__init__(
                cls._only,
                *(
                    _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
                    for converter in DefaultPayloadConverter.default_encoding_payload_converters
                ),
            )
        return cls._only

    def __init__(self) -> None:
        """Change nothing: `__new__` has made all there is."""


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    """The type adapter of a message, for values that arrive undecoded (details of failures)."""
    return TypeAdapter(kind)
