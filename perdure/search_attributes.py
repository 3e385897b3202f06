"""The search attributes of our workflows, by which suites and tasks are found."""

from __future__ import annotations

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
