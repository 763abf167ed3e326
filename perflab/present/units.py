"""Numbers for people. GB is 10^9 B."""

from __future__ import annotations

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(value: float | None) -> str:
    """`1.23 ms`, `-1.23 ms`; empty for None."""
    if value is None:
        return ""
    if value == 0:
        return "0 s"
    scale, unit = next((pair for pair in _TIMES if abs(value) >= pair[0]), _TIMES[-1])
    return f"{value / scale:.3g} {unit}"


def size(value: float | None, per: str = "") -> str:
    """`52.4 MB`, with `per="/s"` a bandwidth; empty for None."""
    if value is None:
        return ""
    scale, unit = next((pair for pair in _SIZES if value >= pair[0]), (1.0, "B"))
    return f"{value / scale:.3g} {unit}{per}"


def ratio(value: float | None, suffix: str = "") -> str:
    """`1.02`, with a suffix such as `x`; empty for None."""
    return "" if value is None else f"{value:.3g}{suffix}" if value >= 100 else f"{value:.2f}{suffix}"


def percent(value: float | None) -> str:
    """`84%`; empty for None."""
    return "" if value is None else f"{value:.0%}"


def value(number: float | None, unit: str) -> str:
    """A number of a stored unit (s, B, B/s or 1) for people; empty for None."""
    if unit == "s":
        return seconds(number)
    if unit in ("B", "B/s"):
        return size(number, unit.removeprefix("B"))
    return "" if number is None else f"{number:.3g}"
