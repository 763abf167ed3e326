"""Where the time of a call goes: a profile's events given to the named parts (`perflab.measure.parts`) they serve.

Every nanosecond of a profiled call belongs to exactly one event, the innermost; and an event to the part that is open
around it. What differentiation runs belongs to the part whose forward made it: autograd numbers forward operations, and
its own carry the number. So the parts' seconds add up to the call.

Calls are profiled between others that are timed, as a machine's speed drifts: the profile tells shares of a call, the
timed ones how long it is. How far a profiled call, without what profiling its events takes, is from plain ones beside
it is told as the profile's error: shares may be off by as much.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from perflab.analyse.stats import median
from perflab.measure.parts import AGAIN, PREFIX, named
from perflab.record import Part

#: Parts that are an optimiser's, and those that backward computes anew: AGAIN what it is inside, REBUILD whole blocks.
UPDATES, REBUILD = ("optimiser", "balance"), "rebuild"
#: What no part claims.
OTHER = "other"
#: Operations that move nothing: they make views, take memory, or ask.
_NAMES = """
    alias as_strided chunk detach diagonal empty empty_like empty_strided expand expand_as flatten item is_nonzero
    lift_fresh narrow permute reshape resize_ resolve_conj resolve_neg result_type select set_ slice split
    split_with_sizes squeeze t to transpose unbind unflatten unfold unsqueeze view view_as _reshape_alias
    _unsafe_view
"""
BOOKKEEPING = frozenset(f"aten::{name}" for name in _NAMES.split())
_BACKWARD = "autograd::engine::evaluate_function"
_CALL = "perflab call"

#: A part's name and phase.
Owner = tuple[str, str]
#: The part that a device's idle time is.
DEVICE_WAITS: Owner = ("device waits", "forward")


@dataclass
class Measured:
    """Seconds, operations or kernels, and events of the profile, of one part."""

    seconds: float = 0.0
    launches: int = 0
    events: int = 0


@dataclass
class _Event:
    """One event of a profile, with those inside it."""

    name: str
    start: int
    end: int
    sequence: int
    correlation: int
    inside: list[_Event] = field(default_factory=list)
    owner: Owner = (OTHER, "forward")

    def moving(self) -> bool:
        """Whether some operation here, or inside, moves bytes."""
        own = self.name.startswith("aten::") and self.name not in BOOKKEEPING
        return own or any(inner.moving() for inner in self.inside)

    @property
    def is_launch(self) -> bool:
        """Whether this is an innermost operation that moves bytes."""
        return self.moving() and not any(inner.moving() for inner in self.inside)

    @property
    def own_ns(self) -> int:
        """Time in no inner event."""
        return self.end - self.start - sum(inner.end - inner.start for inner in self.inside)


@dataclass(frozen=True)
class Observed:
    """A profiled call: what each part of it took, as the profile has it, between two plain calls' mean seconds."""

    plain_s: float
    parts: Mapping[Owner, Measured]

    @property
    def profiled_s(self) -> float:
        """Seconds of all parts."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def events(self) -> int:
        """Events that the profile noted."""
        return sum(part.events for part in self.parts.values())

    @property
    def cost_of_event(self) -> float:
        """Seconds that profiling an event took; below 0 where the machine became faster meanwhile."""
        return (self.profiled_s - self.plain_s) / max(self.events, 1)

    def error(self, cost: float) -> float:
        """How far the profiled call without `cost` for each event is from the plain ones, as a share of them."""
        return (self.profiled_s - cost * self.events) / self.plain_s - 1


#: How often `observe` calls.
CALLS = 3


def observe(call: Callable[[], object], device: str) -> Observed:
    """One call profiled, between two plain ones. The first of a process takes longer: it is for nobody's use."""
    before = _seconds(call, device)
    events = _profile(call, device)
    plain = (before + _seconds(call, device)) / 2
    if device != "cuda":
        return Observed(plain, _host_parts(events))
    kernels = _device_parts(events)
    # Kernels that run side by side may take longer in sum than the call.
    idle = max(0.0, plain - sum(one.seconds for one in kernels.values()))
    return Observed(plain, {**kernels, DEVICE_WAITS: Measured(idle, 0, 0)})


def combine(seen: Sequence[Observed], call_s: float, cost: float, device: str) -> dict[str, Any]:
    """Parts of a call that takes `call_s`: of each its share of the profiled calls, the median over them.

    cost  seconds that profiling an event takes on a CPU, where a part has the time of its operations

    On CUDA a part has the time of its kernels, which a profile does not prolong, and what the device waited stands by
    itself.
    """
    shares = [_shares(one.parts, cost) for one in seen]
    middle = {
        key: median([one.get(key, 0.0) for one in shares]) for key in sorted({key for one in shares for key in one})
    }
    whole = sum(middle.values())
    parts = [
        Part(
            name=key[0], phase=key[1], seconds=call_s * share / whole,
            launches=round(median([one.parts[key].launches if key in one.parts else 0 for one in seen])),
        )
        for key, share in middle.items()
    ]  # fmt: skip
    on_host = {} if device == "cuda" else {"profiler_s": cost, "profile_error": median([o.error(cost) for o in seen])}
    return {"parts": parts, "collector": f"torch.profiler, {len(seen)} steps", **on_host}


def _shares(parts: Mapping[Owner, Measured], cost: float) -> dict[Owner, float]:
    """Every part's share of the call, without the profiler's; none is less than nothing."""
    own = {key: max(0.0, part.seconds - cost * part.events) for key, part in parts.items()}
    return {key: seconds / sum(own.values()) for key, seconds in own.items()}


def _seconds(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _profile(call: Callable[[], object], device: str) -> list[Any]:
    """The events of one call."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]

    with named(), torch.profiler.profile(activities=activities) as profile:
        with torch.profiler.record_function(_CALL):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
    return list(profile.profiler.kineto_results.events())


def _host_parts(events: Iterable[Any]) -> dict[Owner, Measured]:
    """Every part's share of the host's own time; its launches are innermost operations that move bytes."""
    sums: dict[Owner, Measured] = defaultdict(Measured)
    for event in _owned(events):
        mine = sums[event.owner]
        mine.seconds += event.own_ns * 1e-9
        mine.launches += event.is_launch
        mine.events += 1
    return sums


def _device_parts(events: Sequence[Any]) -> dict[Owner, Measured]:
    """Every part's kernels: a kernel belongs to the part that launched it."""
    owned = [event for event in _owned(events) if event.correlation]
    # Runtime calls and operations number themselves apart.
    calls = {event.correlation: event.owner for event in owned if event.name.startswith(("cuda", "cu"))}
    operations = {event.correlation: event.owner for event in owned if not event.name.startswith(("cuda", "cu"))}
    sums: dict[Owner, Measured] = defaultdict(Measured)
    for event in events:
        # Annotations, ours and those that torch makes around its optimisers' steps, are shown on the device too.
        if event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation():
            linked = operations.get(event.linked_correlation_id())
            mine = sums[linked or calls.get(event.correlation_id(), (OTHER, "forward"))]
            mine.seconds += event.duration_ns() * 1e-9
            mine.launches += 1
    return sums


def _owned(events: Iterable[Any]) -> list[_Event]:
    """The events inside the call, each with its owner: part and phase."""
    nested = _nest(events)
    made_by: dict[int, tuple[int, str]] = {}
    for call in nested:
        _give(call, (OTHER, "forward"), made_by)
    # Now that every forward operation is known, backward's can find theirs.
    owned: list[_Event] = []
    for call in nested:
        _give(call, (OTHER, "forward"), made_by, owned)
    return owned


def _nest(events: Iterable[Any]) -> list[_Event]:
    """The marked calls, with everything that ran inside them, on the thread of the call or on autograd's own."""
    by_thread: dict[int, list[_Event]] = defaultdict(list)
    for event in events:
        if event.device_type() == torch.autograd.DeviceType.CPU and not event.name().startswith("["):
            by_thread[event.start_thread_id()].append(
                _Event(event.name(), event.start_ns(), event.end_ns(), event.sequence_nr(), event.correlation_id())
            )
    roots: list[_Event] = []
    for thread in by_thread.values():
        open_: list[_Event] = []
        for event in sorted(thread, key=lambda event: (event.start, -event.end)):
            while open_ and open_[-1].end <= event.start:
                open_.pop()
            if open_:
                open_[-1].inside.append(event)
            elif event.name == _CALL or event.name.startswith(_BACKWARD):
                roots.append(event)
            open_.append(event)
    return roots


def _give(event: _Event, owner: Owner, made_by: dict[int, tuple[int, str]], owned: list[_Event] | None = None) -> None:
    """Give the event and those inside it their owners; note in `made_by` which part made a number's graph, and when."""
    part, phase = owner
    if event.name.startswith(PREFIX):
        name = event.name.removeprefix(PREFIX)
        phase = (
            "update" if name in UPDATES else "rebuild" if phase == "backward" and name in (REBUILD, AGAIN) else phase
        )
        part = part if name == AGAIN else name
    elif event.name.startswith(_BACKWARD) and phase != "rebuild":
        part, phase = made_by.get(event.sequence, (0, part))[1], "backward"
    elif phase in ("forward", "rebuild") and event.sequence >= 0:
        # A number is passed on until an operation makes a node of it: the last one to carry it.
        made_by[event.sequence] = max(made_by.get(event.sequence, (0, "")), (event.start, part))
    event.owner = (part, phase)
    if owned is not None:
        owned.append(event)
    for inner in event.inside:
        _give(inner, event.owner, made_by, owned)
