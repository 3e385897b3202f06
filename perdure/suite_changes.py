"""How the start of a suite differs from the one that is under way."""

from __future__ import annotations

from perdure.core.problems import listed
from perdure.errors import PerdureError
from perdure.messages import SuiteInput
from perdure.suite_input import work_options


class SuiteChanged(PerdureError):
    """The suite is open, and the documents are not those that it was started with."""

    def __init__(
        self, suite: str, changed: list[str], added: list[str], removed: list[str], other: str
    ) -> None:
        """`other`: what else differs, in words; empty if nothing does."""
        self.changed, self.added, self.removed = changed, added, removed
        parts = [
            f"{what} {listed(ids)}"
            for what, ids in (("changed:", changed), ("added:", added), ("removed:", removed))
            if ids
        ]
        super().__init__(
            f"suite {suite!r} is open, and is not what it was started with "
            f"({'; '.join([*parts, *([other] if other else [])])}); go on with the old by "
            "`--changed keep`, or take the new and run those again by `--changed rerun`"
        )


def other_bounds(old: SuiteInput, new: SuiteInput) -> str:
    """What bounds the suite that is open, where the new start says otherwise; else empty."""
    before = _bounds(old)
    return ", ".join(f"{name} {_spelt(before[name])}" for name in _other(old, new))


def ignored(old: SuiteInput, new: SuiteInput) -> tuple[str, ...]:
    """The keywords of the new start that the suite that is open does not heed."""
    return (*_other(old, new), *(["results_dir"] if other_results(old, new) else []))


def _other(old: SuiteInput, new: SuiteInput) -> list[str]:
    before, after = _bounds(old), _bounds(new)
    return [name for name, value in before.items() if value != after.get(name)]


def other_results(old: SuiteInput, new: SuiteInput) -> str | None:
    """Where the suite's results are, if the new start names another directory."""
    asked, kept = new.options.results_dir, old.options.results_dir
    if asked is None or asked == kept:
        return None
    return (
        f"the results of suite {new.suite!r} are in {kept or 'the default directory'}, and not in "
        f"{asked}: each run of a suite keeps to one"
    )


def _spelt(value: object) -> str:
    if value is None:
        return "unset"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(start: SuiteInput) -> dict[str, object]:
    """The options that say how a suite is run and not what, by the name that people know."""
    limits = sorted(start.options.limits.items())
    used = start.pool
    pool = {"pool": used.pool, "keep_envs": used.keep_envs} if used else {}
    return {
        "max_failures": start.max_failures,
        "max_cost": start.max_cost,
        "retry_infrastructure": start.retry_infrastructure,
        "limits": " ".join(f"{name}={slots}" for name, slots in limits) or None,
        "task_timeout": start.options.task_timeout_seconds,
        **pool,
    }


def difference(old: SuiteInput, new: SuiteInput) -> SuiteChanged:
    """What the new start has that the old has not, as the error that names it."""
    before = {task.task["id"]: (task.digest, task.repeats) for task in old.tasks}
    after = {task.task["id"]: (task.digest, task.repeats) for task in new.tasks}
    added = [id for id in after if id not in before]
    removed = [id for id in before if id not in after]
    changed = [id for id in after if id in before and after[id] != before[id]]
    options = [
        name
        for name, value in work_options(new.options).items()
        if value != work_options(old.options)[name]
    ]
    if options:  # they are part of every task's digest
        return SuiteChanged(new.suite, [], added, removed, f"other {', '.join(options)}")
    other = "" if changed or added or removed else "another order of its tasks"
    return SuiteChanged(new.suite, changed, added, removed, other)
