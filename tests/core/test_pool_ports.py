"""Ports of a machine: chosen once, given back, and never two owners."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.ports import TAKEN_FOR_SECONDS, PortRange, Ports

SMALL = PortRange(9000, 9003)


def test_the_wanted_port_comes_first_even_outside_the_range() -> None:
    """P36."""
    ports = Ports()
    assert ports.choose(1, {"A": 18080}, SMALL, 0) == {"A": 18080}
    assert ports.choose(2, {"A": 18080}, SMALL, 0) == {"A": 9000}


def test_a_port_wanted_outside_the_range_needs_none_of_it() -> None:
    ports = Ports()
    ports.choose(1, {"A": 18080}, SMALL, 0)
    assert ports.needed([18080, 18081, 9000], SMALL) == 2


def test_a_choice_that_cannot_be_whole_takes_nothing() -> None:
    ports = Ports()
    assert ports.choose(1, dict.fromkeys("ABCDE", 9000), SMALL, 0) is None
    assert ports.left(SMALL, 0) == 4


def test_a_port_that_was_given_back_is_not_the_next_one() -> None:
    """P39."""
    ports = Ports()
    first = ports.choose(1, {"A": 0}, SMALL, 0)
    ports.give_back(1)
    assert ports.choose(2, {"A": 0}, SMALL, 0) != first


def test_a_port_of_somebody_else_is_tried_again_after_a_while() -> None:
    ports = Ports()
    ports.take([9000, 9001], 0)
    assert ports.left(SMALL, 0) == 2
    assert ports.choose(1, {"A": 9000}, SMALL, 0) == {"A": 9002}
    assert ports.choose(2, {"A": 9000}, SMALL, TAKEN_FOR_SECONDS) == {"A": 9000}


def test_a_range_that_is_upside_down_is_empty() -> None:
    assert len(PortRange(9, 8)) == 0
    assert Ports().choose(1, {"A": 0}, PortRange(9, 8), 0) is None


@given(st.lists(st.tuples(st.sampled_from("cgt"), st.integers(1, 4), st.integers(8998, 9006))))
def test_no_port_ever_has_two_owners(story: list[tuple[str, int, int]]) -> None:
    ports, owned = Ports(), dict[int, dict[str, int]]()
    for move, owner, wanted in story:
        if move == "c" and owner not in owned:
            chosen = ports.choose(owner, {"A": wanted, "B": wanted}, SMALL, 0)
            if chosen:
                owned[owner] = chosen
        elif move == "g":
            ports.give_back(owner)
            owned.pop(owner, None)
        elif move == "t" and not any(wanted in has.values() for has in owned.values()):
            ports.take([wanted], 0)
        everything = [port for has in owned.values() for port in has.values()]
        assert len(set(everything)) == len(everything)
        assert set(ports.owners) == set(everything)
        ports = Ports.from_state(json.loads(json.dumps(ports.state())))


def test_two_pools_that_do_not_know_each_other_begin_at_different_places() -> None:
    """PD13: those who start at the same moment would else meet at every number."""
    within = PortRange(8000, 20000)
    chosen = [Ports(seed).choose(1, {"A": 1, "B": 1}, within, 0) for seed in (5, 12_000_000)]

    assert chosen[0] == {"A": 1, "B": 8005}
    assert chosen[1]
    assert chosen[1]["B"] in within
    assert chosen[1]["B"] != 8005
