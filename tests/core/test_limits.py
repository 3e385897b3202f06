"""The rules of a named limit, without a server."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from perdure.core.limits import (
    OVERTAKES_AT_MOST,
    OVERTAKES_PER_SLOT,
    PRIORITIES,
    REMEMBERED_RELEASES,
    Limit,
)
from perdure.messages import Holder, SlotRequest


def request(id: str, slots: int = 1, **more: Any) -> SlotRequest:
    facts = {"holder": f"task/{id}", "holder_run_id": "r", **more}
    return SlotRequest(limit="openai", request_id=id, slots=slots, **facts)


def asked(*requests: SlotRequest) -> Limit:
    limit = Limit()
    for one in requests:
        limit.request(one, 0)
    return limit


def granted(limit: Limit) -> list[str]:
    return [grant.request_id for grant in limit.take_grants(0)]


def test_as_many_get_a_slot_as_there_are_and_the_next_as_one_is_given_back() -> None:
    limit = asked(*(request(id, 2) for id in "abcd"))
    assert granted(limit) == ["a", "b"]
    assert granted(limit) == []
    limit.release("a")
    assert granted(limit) == ["c"]


def test_asking_twice_takes_one_slot() -> None:
    limit = asked(request("a", 2), request("a", 2))
    assert granted(limit) == ["a"]
    limit.request(request("a", 2), 1)
    assert granted(limit) == []
    limit.release("a")
    assert limit.idle


def test_a_higher_priority_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    limit = asked(
        request("held"),
        request("low", priority="low"),
        request("first"),
        request("second"),
        request("critical", priority="critical"),
    )
    order = granted(limit)
    while order[-1:] and not limit.idle:
        limit.release(order[-1])
        order += granted(limit)
    assert order == ["critical", "held", "first", "second", "low"]


def test_a_small_number_is_kept_while_larger_ones_go_on() -> None:
    limit = asked(request("a", 5), request("b", 5), request("small", 2), request("large", 3))
    assert granted(limit) == ["a", "b", "large"]


def test_a_small_number_is_not_starved_by_a_stream_of_larger_ones() -> None:
    limit = asked(request("x0", 4), request("x1", 4), request("x2", 4), request("small", 1))
    holding, passed = granted(limit), 0
    while "small" not in holding:
        limit.request(request(f"y{passed}", 4), 0)  # there is always a larger one waiting
        holding += granted(limit)
        limit.release(holding.pop(0))
        holding += granted(limit)
        passed += 1
        assert passed < 100
    assert passed > OVERTAKES_PER_SLOT, "the larger ones passed it for a while"


def test_a_low_priority_is_not_starved_by_a_stream_of_higher_ones() -> None:
    limit = asked(request("x"), request("low", priority="low"))
    (holding,) = granted(limit)
    for number in range(OVERTAKES_PER_SLOT + 1):
        limit.request(request(f"y{number}", priority="critical"), 0)
        limit.release(holding)
        (holding,) = granted(limit)
    assert holding == "low"


def test_even_under_an_endless_number_a_small_one_gets_its_turn() -> None:
    limit = asked(request("x", 10**9), request("small", 1))
    assert granted(limit) == ["x"]
    passed = [request(f"y{number}", 10**9) for number in range(OVERTAKES_AT_MOST + 10)]
    for one in passed:
        limit.request(one, 0)
    assert len(granted(limit)) == OVERTAKES_AT_MOST
    for slot in limit.held:
        limit.release(slot.request.request_id)
    assert granted(limit)[0] == "small"


def test_a_request_that_arrives_after_its_release_makes_no_ghost() -> None:
    limit = Limit()
    limit.release("a")
    limit.request(request("a"), 0)
    assert limit.idle


def test_only_so_many_releases_are_remembered() -> None:
    limit = Limit()
    for number in range(10 * REMEMBERED_RELEASES):
        limit.release(str(number))
    assert len(limit.state()["released"]) == REMEMBERED_RELEASES


def test_a_holder_that_is_gone_loses_everything_and_its_namesake_nothing() -> None:
    gone = {"holder": "task/s/t/1", "holder_run_id": "first"}
    reborn = {"holder": "task/s/t/1", "holder_run_id": "second"}
    limit = asked(request("a", 2, **gone), request("b", 2, **reborn), request("c", 2, **gone))
    assert granted(limit) == ["a", "b"]
    limit.close(Holder("task/s/t/1", "first"))
    assert limit.holders == [Holder("task/s/t/1", "second")]
    assert granted(limit) == []


class AnyOrder(RuleBasedStateMachine):
    """Tasks that ask and give back, by messages that come twice, late and in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.limit = Limit()
        self.count = 0
        self.holding: dict[str, SlotRequest] = {}  # as the tasks know it
        self.asked: dict[str, SlotRequest] = {}
        self.given_back: set[str] = set()

    @rule(
        target=requests,
        slots=st.integers(1, 4),
        priority=st.sampled_from(PRIORITIES),
        holder=st.integers(1, 5),
    )
    def ask(self, slots: int, priority: str, holder: int) -> SlotRequest:
        self.count += 1
        one = request(f"{self.count}", slots, priority=priority, holder=f"task/{holder}")
        self.tell(one)
        return one

    @rule(
        target=requests,
        slots=st.integers(1, 4),
        holder=st.integers(1, 5),
    )
    def ask_late(self, slots: int, holder: int) -> SlotRequest:
        self.count += 1
        return request(f"{self.count}", slots, holder=f"task/{holder}")

    @rule(one=requests)
    def tell(self, one: SlotRequest) -> None:
        self.limit.request(one, self.count)
        if one.request_id not in self.given_back:
            self.asked[one.request_id] = one
        self.hear()

    @rule(one=requests)
    def give_back(self, one: SlotRequest) -> None:
        self.limit.release(one.request_id)
        self.given_back.add(one.request_id)
        self.holding.pop(one.request_id, None)
        self.asked.pop(one.request_id, None)
        self.hear()

    @rule(one=consumes(requests))
    def vanish(self, one: SlotRequest) -> None:
        self.limit.close(Holder(one.holder, one.holder_run_id))
        mine = {id for id, other in self.asked.items() if other.holder == one.holder}
        self.given_back |= mine
        for id in mine:
            self.holding.pop(id, None)
            self.asked.pop(id, None)
        self.hear()

    @rule()
    def continue_as_new(self) -> None:
        self.limit = Limit.from_state(self.limit.state())

    def hear(self) -> None:
        for grant in self.limit.take_grants(self.count):
            assert grant.request_id not in self.holding, "a slot is told once"
            one = self.asked[grant.request_id]
            assert len(self.holding) < one.slots, "never beyond the asker's number"
            self.holding[grant.request_id] = one

    @invariant()
    def everybody_is_accounted_for(self) -> None:
        held = [slot.request.request_id for slot in self.limit.held]
        waiting = [waiter.request.request_id for waiter in self.limit.waiting]
        assert sorted(held) == sorted(self.holding)
        assert sorted(held + waiting) == sorted(self.asked)
        assert self.limit.idle == (not self.asked)

    def teardown(self) -> None:
        """As capacity returns, everybody who waits gets a slot."""
        for _ in range(len(self.asked) + 1):
            if not self.asked:
                return
            assert self.holding, "somebody waits while every slot is free"
            one = next(iter(self.holding.values()))
            self.limit.release(one.request_id)
            del self.holding[one.request_id], self.asked[one.request_id]
            self.hear()
        assert not self.asked


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
test_messages_in_any_order = AnyOrder.TestCase
