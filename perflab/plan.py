"""From a suite to cases: what will be measured, and what cannot be, with the reason. Needs no tensor library."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perflab.catalogue import Catalogue, Implementation, StageEntry
from perflab.errors import PerflabError, unknown
from perflab.record import Reason, Status
from perflab.suite import GroupSpec, Suite


@dataclass(frozen=True)
class Case:
    """One implementation on one shape. `blocked` says why, when planning already tells that it cannot run.

    label  the preset that the shape comes from, with what differs from it; empty for a shape without one
    """

    implementation: Implementation
    shape: dict[str, int]
    dtype: str
    pass_: str
    device: str
    blocked: tuple[Status, Reason] | None = None
    label: str = ""

    @property
    def id(self) -> str:
        """A name for people and for --resume: everything that tells two cases of a run apart."""
        sizes = self.label.replace(" ", ",") or ",".join(f"{dim}={size}" for dim, size in self.shape.items())
        return f"{self.implementation.name} {sizes} {self.dtype} {self.pass_} {self.device}"


@dataclass(frozen=True)
class Group:
    """Cases that compete: same stage, shape, dtype, pass and device. They are sampled in turn."""

    stage: StageEntry
    shape: dict[str, int]
    dtype: str
    pass_: str
    device: str
    cases: tuple[Case, ...]
    label: str = ""

    @property
    def title(self) -> str:
        """Stage, shape and dtype in one line."""
        sizes = self.label or " ".join(f"{dim}={size}" for dim, size in self.shape.items())
        return f"{self.stage.name} {sizes} {self.dtype} {self.pass_}"

    def with_cases(self, cases: Sequence[Case]) -> Group:
        """The same group with other cases."""
        return dataclasses.replace(self, cases=tuple(cases))


@dataclass(frozen=True)
class Plan:
    """All groups of a suite on one device, in order."""

    groups: tuple[Group, ...] = field(default_factory=tuple)

    def cases(self) -> Iterator[Case]:
        """Every case in order."""
        for group in self.groups:
            yield from group.cases

    def without(self, case_ids: set[str]) -> Plan:
        """What is left when the cases named are done."""
        left = []
        for group in self.groups:
            cases = tuple(case for case in group.cases if case.id not in case_ids)
            if cases:
                left.append(group.with_cases(cases))
        return Plan(tuple(left))


def make_plan(
    suite: Suite, catalogue: Catalogue, device: str, only: Sequence[str] = (), available: bool = True
) -> Plan:
    """Cross stages, implementations and shapes; what cannot run is kept, with its reason.

    only       globs on full names (`mhc/pre/*`), on stages or on file stems (`triton_*`)
    available  whether `device` exists here

    Fails: PerflabError for a name that matches nothing or a shape that lacks a dim.
    """
    _check_names(suite, catalogue, only)
    groups: dict[str, Group] = {}
    for spec in suite.groups:
        for stage in catalogue.stages.values():
            if not _matches(spec.stages, stage.name):
                continue
            chosen = [i for i in _candidates(stage, only) if _chosen(i, spec, only)]
            for group in _groups_of(spec, stage, device, chosen, available):
                groups[group.title] = _merge(groups.get(group.title), group)
    return Plan(tuple(group for group in groups.values() if group.cases))


def _groups_of(
    spec: GroupSpec, stage: StageEntry, device: str, chosen: list[Implementation], available: bool
) -> Iterator[Group]:
    contract = stage.contract
    dtypes = list(dict.fromkeys(d if d in contract.dtypes else contract.dtypes[-1] for d in spec.dtypes))
    for shape, label in _shapes(spec, stage):
        for dtype in dtypes:
            for pass_ in _passes(spec, stage):
                cases = tuple(
                    Case(
                        i, shape, dtype, pass_, device,
                        _blocked(i, stage, (shape, pass_), None if available else device), label,
                    )
                    for i in chosen
                )  # fmt: skip
                yield Group(stage, shape, dtype, pass_, device, cases, label)


def _shapes(spec: GroupSpec, stage: StageEntry) -> Iterator[tuple[dict[str, int], str]]:
    """The shapes of one stage, each with its label. Fails: PerflabError for an unknown preset or a missing dim."""
    contract, base = stage.contract, {}
    if spec.preset is not None:
        if spec.preset not in contract.presets:
            raise unknown("preset", spec.preset, contract.presets)
        base = dict(contract.presets[spec.preset])
    for sizes in spec.shapes():
        full = base | sizes
        missing = [dim for dim in contract.dims if dim not in full]
        if missing:
            raise PerflabError(f"suite: group.shape has no {', '.join(missing)}, which {stage.name} needs")
        shape = {dim: full[dim] for dim in contract.dims}
        changed = [f"{dim}={size}" for dim, size in shape.items() if base.get(dim) != size]
        yield shape, " ".join([spec.preset, *changed]) if spec.preset else ""


def _passes(spec: GroupSpec, stage: StageEntry) -> Sequence[str]:
    """The passes asked for, or the stage's usual one. Fails: PerflabError for one that the stage does not have."""
    allowed = stage.contract.passes
    if strange := [pass_ for pass_ in spec.passes if pass_ not in allowed]:
        raise PerflabError(f"suite: group.passes: {stage.name} has {', '.join(allowed)}, not {strange[0]}")
    return spec.passes or allowed[:1]


def _merge(known: Group | None, group: Group) -> Group:
    """One group for one title, whichever part of the suite asked for its cases."""
    if known is None:
        return group
    return group.with_cases(list({case.id: case for case in (*known.cases, *group.cases)}.values()))


def _blocked(
    implementation: Implementation, stage: StageEntry, what: tuple[dict[str, int], str], missing_device: str | None
) -> tuple[Status, Reason] | None:
    """Status and reason when the case cannot run here. what: shape and pass."""
    shape, pass_ = what
    if implementation.problem:
        return "failed", Reason(code="broken_file", text=f"{implementation.path.name}: {implementation.problem}")
    if missing_device:
        return "skipped", Reason(code="no_device", text=f"no {missing_device} device on this machine")
    missing = [package for package in implementation.requires if not _importable(package)]
    if missing:
        text = f"needs the package {', '.join(missing)}, which is not installed"
        return "skipped", Reason(code="missing_toolkit", text=text)
    if refusal := stage.contract.refusal(shape, pass_):
        return "skipped", Reason(code=refusal[0], text=f"{stage.name} {refusal[1]}")
    return None


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _candidates(stage: StageEntry, only: Sequence[str]) -> list[Implementation]:
    """The competitors; wrong ones only where a glob asks for them by name."""
    wanted_wrong = any("wrong" in glob for glob in only)
    return [*stage.implementations, *(stage.wrong if wanted_wrong else ())]


def _chosen(implementation: Implementation, spec: GroupSpec, only: Sequence[str]) -> bool:
    if only and not any(_selects(glob, implementation) for glob in only):
        return False
    return implementation.stem.startswith("wrong/") or _matches(spec.implementations, implementation.stem)


def _selects(glob: str, implementation: Implementation) -> bool:
    return any(
        fnmatch.fnmatchcase(name, glob)
        for name in (implementation.name, implementation.stage, implementation.stem, implementation.toolkit)
    )


def _matches(globs: Sequence[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _check_names(suite: Suite, catalogue: Catalogue, only: Sequence[str]) -> None:
    """Refuse globs that match nothing: a typing error must not look like an empty result."""
    everything = list(catalogue.implementations(wrong=True))
    for glob in only:
        if not any(_selects(glob, implementation) for implementation in everything):
            raise unknown("implementation", glob, [i.name for i in everything])
    for spec in suite.groups:
        for glob in spec.stages:
            if not any(fnmatch.fnmatchcase(name, glob) for name in catalogue.stages):
                raise unknown("stage", glob, catalogue.stages)
        for glob in spec.implementations:
            if not any(fnmatch.fnmatchcase(i.stem, glob) for i in everything):
                raise unknown("implementation", glob, {i.stem for i in everything})
