"""What is true of a task of the soak, whatever happened to it.

It is judged from its document, its record and what its steps have written to a ledger.
"""

from __future__ import annotations

import itertools
from typing import Any

from soak_steps import fails, token, writes


def judge(
    seed: str, document: dict[str, Any], record: dict[str, Any], ledger: list[str]
) -> list[str]:
    """What is wrong with a task that has ended."""
    steps = {step["id"]: step["attempts"] for step in record["steps"]}
    done = [rollback for rollback in record["rollbacks"] if rollback["epoch"] is not None]
    restarts = set(range(1, record["attempt_epoch"] + 1)) - {r["epoch"] for r in done}
    # To start over, since the environments were lost, takes every step back, and undoes none.
    over = [{"epoch": epoch, "span": list(steps)} for epoch in sorted(restarts)]
    return [
        *(line for line in ledger if line.startswith("saw-")),
        *_repeated(steps, [*done, *over]),
        *_not_undone(record["task_id"], steps, done, restarts, ledger),
        *_out_of_order(steps, record["rollbacks"]),
        *(_context(seed, document, record) if record["status"] == "succeeded" else ()),
        *(_world(document, record, [*done, *over]) if record["status"] == "succeeded" else ()),
    ]


def _repeated(steps: dict[str, list[dict[str, Any]]], done: list[dict[str, Any]]) -> list[str]:
    found = []
    for name, attempts in steps.items():
        for one, other in itertools.pairwise(attempts):
            between = (r for r in done if one["epoch"] < r["epoch"] <= other["epoch"])
            if one["status"] == "succeeded" and not any(name in r["span"] for r in between):
                found.append(f"{token(name, one['number'])} had succeeded, and ran again")
    return found


def _not_undone(
    task: str,
    steps: dict[str, list[dict[str, Any]]],
    done: list[dict[str, Any]],
    restarts: set[int],
    ledger: list[str],
) -> list[str]:
    last = {line: number for number, line in enumerate(ledger)}
    found, known = [], set[str]()
    for rollback in done:
        for name in rollback["span"]:
            for attempt in steps[name]:
                mine = token(name, attempt["number"])
                later = range(attempt["epoch"] + 1, rollback["epoch"] + 1)
                if not later or mine in known or restarts.intersection(later):
                    continue
                known.add(mine)
                words = [last.get(f"{word} {task} {mine}", -1) for word in ("do", "done")]
                undone = last.get(f"undone {task} {mine}", -1)
                if undone <= max(words):
                    found.append(f"{mine} was not undone after its last word")
    return found


def _out_of_order(
    steps: dict[str, list[dict[str, Any]]], rollbacks: list[dict[str, Any]]
) -> list[str]:
    found = []
    for rollback in rollbacks:
        undos = rollback["compensations"]
        if any(undo["ended_at"] is None for undo in undos):
            found.append(f"rollback {rollback['number']} left out what it had planned")
        ends = [steps[undo["step_id"]][undo["attempt"] - 1]["ended_at"] for undo in undos]
        if ends != sorted(ends, reverse=True):
            found.append(f"rollback {rollback['number']} did not undo the newest first")
    return found


def _context(seed: str, document: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Against the attempts that count, one after another."""
    task, context = document["id"], record["context"]
    by_id = {step["id"]: step for step in document["steps"]}
    attempts = {step["id"]: step["attempts"] for step in record["steps"]}
    ended = [known["step_id"] for known in record["completed_steps"]]
    if sorted(ended) != sorted(by_id):
        return [f"it succeeded with {len(ended)} of {len(by_id)} steps"]
    shared = context["metadata"].get("shared", {})
    good, wrote = set[str](), dict[str, str]()
    for name in ended:
        may_count = {}
        for number in _candidates(attempts[name]):
            failed = fails(seed, task, by_id[name], number)
            silent = failed and not writes(seed, task, name, number)
            may_count[None if silent else token(name, number)] = not failed
        (told,) = shared.get(name, [None])
        if told not in may_count:
            return [f"{name} has written {told}, not one of {sorted(may_count, key=str)}"]
        if may_count[told]:
            good.add(name)
        if told:
            wrote[name] = told
    tokens = list(wrote.values())
    seen = {
        "results": {n: r["token"] for n, r in context["results"].items() if n in good},
        "texts": context["prompt_responses"],
        "sandboxes": [item["sandbox_id"] for item in context["deployed_sandboxes"]],
        "shared": shared,
        "last": context["metadata"].get("last"),
    }
    expected = {
        "results": {name: wrote[name] for name in good},
        "texts": tokens,
        "sandboxes": tokens,
        "shared": {name: [written] for name, written in wrote.items()},
        "last": tokens[-1] if tokens else None,
    }
    return [f"{k} is {seen[k]}, not {expected[k]}" for k in seen if seen[k] != expected[k]]


def _candidates(attempts: list[dict[str, Any]]) -> list[int]:
    """The attempts of which one is that whose work counts: the last, or one that was lost right
    before it, if the last has found that one's outcome."""
    *before, last = attempts
    if not last["adopted"]:
        return [last["number"]]
    lost = itertools.takewhile(
        lambda known: known["status"] in ("lost", "interrupted"), before[::-1]
    )
    return [known["number"] for known in lost]


def _world(
    document: dict[str, Any], record: dict[str, Any], taken_back: list[dict[str, Any]]
) -> list[str]:
    """What the last step has found in the environment tells the same story as the context."""
    if not document.get("environments"):
        return []
    found = set(record["context"]["results"]["end"]["world"])
    shared = record["context"]["metadata"].get("shared", {})
    uses = {step["id"] for step in document["steps"] if step["uses"]}
    living = set[str]()
    for step in record["steps"]:
        name = step["id"]
        since = max((r["epoch"] for r in taken_back if name in r["span"]), default=0)
        mine = [a["number"] for a in step["attempts"] if a["epoch"] >= since]
        living.update(token(name, number) for number in mine if name in uses)
    counts = {written for name, (written,) in shared.items() if name in uses}
    faults = [f"{one} was taken back, and is still in the world" for one in found - living]
    return faults + [f"{one} counts, and is not in the world" for one in counts - found]
