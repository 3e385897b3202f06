"""Reading YAML and JSON that may be hostile, with the line of every value."""

from perdure.reading.files import read_bytes, read_text
from perdure.reading.from_json import read_json
from perdure.reading.from_yaml import read_yaml
from perdure.reading.source import Finding, Source, Unreadable

__all__ = ["Finding", "Source", "Unreadable", "read_bytes", "read_json", "read_text", "read_yaml"]
