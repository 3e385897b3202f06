"""What people ask of a pool, fulfilled, with a sentence for them."""

from __future__ import annotations

from perdure.core.pool import Pool
from perdure.core.pool_definitions import Definition
from perdure.pool_messages import PoolWish


class CannotFulfil(ValueError):
    """The wish makes no sense as the pool is now; its text says why."""


def fulfil(pool: Pool, wish: PoolWish, now: float) -> str:
    """Do what is asked for as far as it can be done at once; returns what was or will be done.

    Raises CannotFulfil.
    """
    if pool.closing is not None:
        if wish.kind == "shutdown":
            return f"{_count(len(pool.instances), 'instance')} left, being stopped already"
        raise CannotFulfil(f"the pool is closing: {pool.closing}")
    match wish.kind:
        case "reset":
            return _reset(pool, wish.environment, now)
        case "stop":
            return _stop(pool, wish.environment, now)
        case "shutdown":
            return _shut_down(pool, now)
        case "prewarm":
            return _prewarm(pool, wish)
        case "sweep":
            return _sweep(pool)


def _reset(pool: Pool, environment: str | None, now: float) -> str:
    names = _names(pool, environment)
    in_use = sum(i.environment in names and i.lease is not None for i in pool.instances)
    done = sum(pool.reset_environment(name, now) for name in names)
    of = f" of {environment}" if environment else ""
    rest = f"; {_count(in_use, 'instance')} in use will be after use" if in_use else ""
    return f"{_count(done, 'idle instance')}{of} being reset{rest}"


def _stop(pool: Pool, environment: str | None, now: float) -> str:
    counts = [pool.stop_environment(name, now) for name in _names(pool, environment)]
    at_once, later = (sum(column) for column in zip(*counts, strict=True))
    of = f" of {environment}" if environment else ""
    rest = f"; {_count(later, 'instance')} in use will be stopped after use" if later else ""
    return f"{_count(at_once, 'instance')}{of} being stopped{rest}"


def _shut_down(pool: Pool, now: float) -> str:
    leases, waiting, instances = len(pool.leases), len(pool.queue), len(pool.instances)
    pool.shut_down(now)
    return (
        f"the pool shuts down: {_count(instances, 'instance')} being stopped, "
        f"{_count(leases, 'lease')} taken back, {_count(waiting, 'waiting request')} refused"
    )


def _prewarm(pool: Pool, wish: PoolWish) -> str:
    name = wish.environment or ""
    definition = Definition.from_json(wish.definition) if wish.definition else pool.newest(name)
    if definition is None:
        raise CannotFulfil(f"environment {name!r} is not known to the pool: send its definition")
    limit = definition.environment.max_instances
    if wish.count < 0 or (limit is not None and wish.count > limit):
        most = "" if limit is None else f" and at most {limit}, its max_instances"
        raise CannotFulfil(f"{wish.count} instances of {definition.name}: ask for 0 or more{most}")
    pool.prewarm(definition, wish.count)
    if not wish.count:
        return f"no instance of {definition.name} is kept ready any longer"
    return f"{_count(wish.count, 'instance')} of {definition.name} kept ready from now on"


def _sweep(pool: Pool) -> str:
    names = [host.name for host in pool.hosts.usable]
    if not names:
        raise CannotFulfil("no host is there to be swept: start a worker first")
    for name in names:
        pool.sweep(name)
    return f"what this pool left behind is removed from {', '.join(names)}"


def _names(pool: Pool, environment: str | None) -> list[str]:
    """The environments that are meant."""
    there = sorted(pool.instances.alive())
    if environment is None:
        if not there:
            raise CannotFulfil("the pool has no instance")
        return there
    if environment not in there and pool.newest(environment) is None:
        known = ", ".join(there) or "none"
        raise CannotFulfil(f"the pool knows no environment {environment!r}; it has: {known}")
    return [environment]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
