"""Values to JSON and back, by pydantic, with type adapters that are made once a process.

The SDK makes a payload converter anew for each workflow and each context in which it decodes,
seven times a step. The SDK's pydantic converter then forgets its adapters, of which one costs more
than a step does; ours keeps them, and is itself made once. It leaves out fields of messages that
have their default: half of a step's bytes, which client, server and history would all carry.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any, ClassVar

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    """The type adapter of a message, for values that arrive undecoded (details of failures)."""
    return TypeAdapter(kind)


class _JsonConverter(PydanticJSONPlainPayloadConverter):
    """The SDK's, without the fields of dataclasses that have their default."""

    def to_payload(self, value: Any) -> Payload | None:
        """As JSON. A field's default must never change, since it stands for what is left out."""
        kind = type(value)
        if not is_dataclass(kind):
            return super().to_payload(value)
        data = adapter(kind).dump_json(value, exclude_defaults=True, warnings=False)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)


_JSON = _JsonConverter()


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
