"""Every remark that a record can carry, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perflab.record import KernelReport

#: Above this share of the processors, others' work makes times untrustworthy.
BUSY_SHARE = 0.1


def not_deterministic() -> str:
    """Two runs on the same inputs differ in some bits."""
    return "not deterministic: two calls on the same inputs differ; avoid atomics and unordered sums"


def checked_on_fewer_tokens(dim: str, checked: int, declared: int, execution: str) -> str:
    """An interpreter is too slow for the declared shape."""
    return f"checked at {dim}={checked} instead of {declared}: {execution} runs are slow; a CUDA device checks all"


def checked_smaller(sizes: Mapping[str, int]) -> str:
    """The reference cannot hold the declared shape, or the toolkit is too slow for it here."""
    told = " ".join(f"{dim}={size}" for dim, size in sizes.items())
    return f"checked at {told}: the fp64 reference of the declared shape would be too large or too slow"


def undecided(width: float, wanted: float) -> str:
    """The overhead's interval is wider than asked for."""
    return (
        f"undecided: the 95% interval of the overhead is {100 * width:.1f} percentage points wide, "
        f"{100 * wanted:.1f} were asked for; close other programs or raise timing.max_seconds"
    )


def no_overhead() -> str:
    """There is nothing to relate the time to."""
    return "undecided: no overhead, as the baseline was not timed beside it, or in too few rounds"


def no_parts(text: str) -> str:
    """The step's time could not be told apart."""
    return f"time not attributed: {text}"


def profile_off(error: float) -> str:
    """Profiled steps are not like those that were timed."""
    return (
        f"profile off: profiled steps without what profiling takes are {error:+.0%} off plain ones beside them, so the "
        "parts' shares may be off by as much; close other programs"
    )


def no_traffic(text: str) -> str:
    """The source could not count this case."""
    return f"bytes not counted: {text}"


def no_memory(text: str) -> str:
    """The bytes kept and needed could not be measured."""
    return f"memory not measured: {text}"


def traffic_below_fewest(source: str) -> str:
    """A source saw less than must move: it did not see everything."""
    return f"bytes not counted: {source} saw less than the fewest possible, so some move where it cannot look"


def no_compile(text: str) -> str:
    """The compiler for the target could not be run or refused."""
    return f"not compiled for Hopper: {text}"


def spills(kernels: Sequence[KernelReport]) -> str:
    """Registers spill to memory."""
    names = ", ".join(f"{kernel.name} ({kernel.spill_bytes} B)" for kernel in kernels)
    return f"registers spill in {names}: use smaller tiles or more warps"


def unstable(half_width: float, wanted: float, stop_reason: str) -> str:
    """Sampling stopped before the median was known well enough."""
    more = "timing.max_samples" if stop_reason == "samples" else "timing.max_seconds"
    return (
        f"noisy: the median is known to +-{half_width:.1%}, {wanted:.1%} was asked for; "
        f"close other programs or raise {more}"
    )


def host_bound(count: int, samples: int) -> str:
    """The device waited for the host inside the timed span."""
    return f"host-bound: in {count} of {samples} samples the device waited for the host, so they are no kernel's time"


def busy(share: float) -> str:
    """Others used the processors while the case was sampled."""
    return (
        f"busy machine: other programs used {share:.0%} of the processors while this was sampled, "
        "so its time may be far off however narrow its interval; close them and measure again"
    )
