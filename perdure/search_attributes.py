"""The search attributes of our workflows, by which suites and tasks are found."""

from __future__ import annotations

from typing import Literal

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure.names import KIND_ATTRIBUTE, SUITE_ATTRIBUTE, TASK_ATTRIBUTE

SEARCH_ATTRIBUTES = {
    "PerdureKind": "Keyword",
    "PerdureSuite": "Keyword",
    "PerdureTask": "Keyword",
    "PerdureStep": "Keyword",
    "PerdureOutcome": "Keyword",
    "PerdureHost": "Keyword",
    "PerdureAgent": "Keyword",
    "PerdureEnvironments": "KeywordList",
    "PerdureLabels": "KeywordList",
    "PerdureCapabilities": "KeywordList",
    "PerdureScore": "Double",
}
"""Name and type, as Temporal's commands write it."""


def attributes_of(
    kind: Literal["suite", "task", "job"],
    suite: str,
    task_id: str | None = None,
    *,
    known: bool = True,
) -> TypedSearchAttributes:
    """What a workflow is started with; nothing if the server does not know our attributes.

    `known`: `TaskOptions.search_attributes`.
    """
    values = ((KIND_ATTRIBUTE, kind), (SUITE_ATTRIBUTE, suite), (TASK_ATTRIBUTE, task_id))
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in values
            if known and value is not None
        ]
    )
