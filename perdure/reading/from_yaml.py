"""The YAML reader: plain data only, one document, no recursion."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

from perdure.core.problems import shown
from perdure.reading.source import MAX_INTEGER_DIGITS, Builder, Source, Unreadable

# The parser in C is ten times faster; both give the same events.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = f"{_PREFIX}merge"
_TEXT = f"{_PREFIX}str"
_TEXT_TAGS = frozenset({_TEXT, f"{_PREFIX}value", _MERGE})
_SCALAR_TAGS = frozenset(
    f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "timestamp")
)
_MAPPING_TAGS = frozenset({None, "!", f"{_PREFIX}map"})
_LIST_TAGS = frozenset({None, "!", f"{_PREFIX}seq"})


class _Scalars(SafeConstructor, Resolver):
    """YAML's own rules for what a bare word is; used for scalars only."""

    def tag_of(self, event: ScalarEvent) -> str:
        if event.tag is not None and event.tag != "!":
            return str(event.tag)
        # Most scalars are texts, and these two questions tell it sooner than the rules do.
        if not event.implicit[0] or event.value[:1] not in self.yaml_implicit_resolvers:
            return _TEXT
        return str(self.resolve(ScalarNode, event.value, event.implicit))  # type: ignore[no-untyped-call]

    def value_of(self, event: ScalarEvent, tag: str) -> Any:
        if tag in _TEXT_TAGS:
            return event.value
        line = _line(event)
        if tag not in _SCALAR_TAGS:
            raise _tag_refused(tag, line)
        if tag == f"{_PREFIX}int" and len(event.value) > MAX_INTEGER_DIGITS:
            raise Unreadable(line, "the number has too many digits", "quote it, to have it as text")
        try:
            return self.yaml_constructors[tag](self, ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError, OverflowError, yaml.YAMLError):
            name = tag.removeprefix(_PREFIX)
            raise Unreadable(
                line, f"{shown(event.value)} looks like a YAML {name} and is none", "quote it"
            ) from None


def read_yaml(text: str, *, later_wins: bool = False) -> Source:
    """Read one YAML document; `later_wins`: of duplicate keys the last counts, not the first.

    Raises Unreadable at the first place that cannot be read.
    """
    if found := _UNPRINTABLE.search(text):
        raise Unreadable(
            text.count("\n", 0, found.start()) + 1,
            f"the file holds the control character U+{ord(found.group()):04X}",
            "remove it, or write it as an escape in a quoted text",
        )
    parser = _Parser(text)
    try:
        return _build(parser, Builder(later_wins=later_wins))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.split("\n")
        # YAML ends lines at more characters than editors do, and its marks may lie past the end.
        line = min(mark.line, len(lines) - 1) if mark else 0
        if lines[line].lstrip(" ").startswith("\t"):
            raise Unreadable(line + 1, "a tab is used to indent", "use spaces") from None
        raise Unreadable(
            line + 1,
            f"this is not YAML: {_reason(error)}",
            "indent by spaces and quote texts with special characters",
        ) from None
    except yaml.YAMLError as error:
        raise Unreadable(None, f"this is not YAML: {error}", "correct it") from None
    finally:
        parser.dispose()


def _reason(error: yaml.MarkedYAMLError) -> str:
    return " ".join(filter(None, (error.context, error.problem)))


def _build(parser: Any, builder: Builder) -> Source:
    scalars = _Scalars()
    documents = 0
    has_event, next_event = parser.check_event, parser.get_event
    while has_event():
        event = next_event()
        line = event.start_mark.line + 1 if event.start_mark else 1
        kind = type(event)  # a comparison is faster than isinstance, and there are many events
        if kind is ScalarEvent:
            tag = scalars.tag_of(event)
            if tag == _MERGE and builder.expects_key:
                builder.key("<<", line, merge=True)
            else:
                builder.scalar(scalars.value_of(event, tag), line, event.anchor)
        elif kind is MappingStartEvent:
            if event.tag not in _MAPPING_TAGS:
                raise _tag_refused(str(event.tag), line)
            builder.begin({}, line, event.anchor)
        elif kind is SequenceStartEvent:
            if event.tag not in _LIST_TAGS:
                raise _tag_refused(str(event.tag), line)
            builder.begin([], line, event.anchor)
        elif kind is MappingEndEvent or kind is SequenceEndEvent:
            builder.end()
        elif kind is AliasEvent:
            builder.alias(str(event.anchor), line)
        elif kind is DocumentStartEvent:
            documents += 1
            if documents > 1:
                raise Unreadable(
                    line, "a second document begins here (---)", "put each task into its own file"
                )
    if documents == 0:
        raise Unreadable(1, "the file is empty, or holds only comments", "write a task into it")
    return builder.source()


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _tag_refused(tag: str, line: int) -> Unreadable:
    name = "!!" + tag.removeprefix(_PREFIX) if tag.startswith(_PREFIX) else tag
    return Unreadable(line, f"the tag {shown(name, quote=False)} is not read", "write plain data")
