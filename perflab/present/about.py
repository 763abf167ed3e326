"""What a run's page says of the run itself: what was asked, where, with what, when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perflab.present import units


def facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values for a list; what run.json does not tell is said to be unknown, not left out."""
    machine, torch = about.get("machine") or {}, about.get("torch") or {}
    libraries = about.get("libraries") or {}
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    missing = ", ".join(name for name, version in libraries.items() if not version)
    return [
        ("run", str(about.get("run_id", "unknown"))),
        ("suite", str(about.get("suite_name", "unknown"))),
        ("device", str(about.get("device", "unknown"))),
        ("processor", f"{machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores, "
                      f"{torch.get('threads', '?')} threads"),
        ("GPU", _gpus(machine)),
        ("memory", units.size(machine.get("memory_bytes")) or "unknown"),
        ("last-level cache", _cache(about, machine, torch)),
        ("ceiling", _ceiling(about)),
        ("system", str(machine.get("os", "unknown"))),
        ("versions", f"Python {about.get('python', 'unknown')}, {versions or 'libraries unknown'}"),
        *([("not installed", missing)] if missing else []),
        ("commit", _commit(about.get("commit"))),
        ("started", str(about.get("start") or "unknown")),
        ("ended", str(about.get("end") or "unknown")),
        *([("resumed", ", ".join(about["resumed"]))] if about.get("resumed") else []),
        ("complete", "no: interrupted, cases are missing" if about.get("interrupted", True) else "yes"),
    ]  # fmt: skip


def _gpus(machine: Mapping[str, Any]) -> str:
    found = [
        f"{gpu['name']} ({units.size(gpu['memory_bytes'])}, driver {gpu['driver']})"
        for gpu in machine.get("gpus") or []
    ]
    return ", ".join(found) or "none"


def _cache(about: Mapping[str, Any], machine: Mapping[str, Any], torch: Mapping[str, Any]) -> str:
    size = torch.get("l2_bytes") if about.get("device") == "cuda" else machine.get("last_level_cache_bytes")
    return units.size(size) or "unknown"


def _ceiling(about: Mapping[str, Any]) -> str:
    outside = [entry for entry in about.get("ceiling") or [] if entry["outside_cache"]]
    best = max(outside, key=lambda entry: entry["bandwidth"], default=None)
    if best is None:
        return "not measured outside the cache"
    size = units.size(best["working_set_bytes"])
    return f"{units.size(best['bandwidth'], '/s')} ({best['kernel']} of {size}, measured in this run)"


def _commit(commit: Mapping[str, Any] | None) -> str:
    if not commit:
        return "not in a git repository"
    return str(commit["id"])[:12] + (", with uncommitted changes" if commit["dirty"] else "")
