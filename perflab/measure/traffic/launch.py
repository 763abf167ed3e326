"""One interpreted launch while it is counted, and the sum over launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perflab.measure.traffic.footprint import strided
from perflab.measure.traffic.grid import GridClass, classes
from perflab.measure.traffic.touched import Direction, Regions, Touched

_DIRECTIONS: tuple[Direction, ...] = ("read", "write")
Requests = Counter[tuple[str, Direction]]


class NotUniform(RuntimeError):  # a finding, which the harness turns into a warning
    """Programs that should move equal bytes do not, so a sample cannot stand for the launch."""


class Launch:
    """One launch of a kernel: its arguments, the programs chosen, and what each of them touched."""

    def __init__(
        self, kernel: str, arg_names: Sequence[str], names: Mapping[str, Any], choice: tuple[int, int]
    ) -> None:
        self.kernel, self.arg_names, self.names = kernel, arg_names, names
        self.budget, self.seed = choice
        self.grid: tuple[int, ...] = ()
        self.classes: list[GridClass] = []
        self.regions = Regions([])
        self.programs: list[tuple[int, ...]] = []
        self.requests: dict[tuple[int, ...], Requests] = {}
        self.sectors: dict[tuple[int, ...], Counter[Direction]] = {}

    @property
    def sampled(self) -> bool:
        """Whether some programs did not run."""
        return not all(group.complete for group in self.classes)

    def locate(self, given: tuple[Any, Any], on_host: tuple[Any, Any]) -> None:
        """Learn where the interpreter keeps the tensor arguments: positional and keyword, as given and on the host."""
        (args, kwargs), (host_args, host_kwargs) = given, on_host
        pairs = [*zip(self.arg_names, args, host_args, strict=False)]
        pairs += [(name, value, host_kwargs[name]) for name, value in kwargs.items()]
        self.regions = Regions(
            (self._name_of(tensor, name), host)
            for argument, value, host_value in pairs
            for (name, tensor), (_, host) in zip(_tensors(argument, value), _tensors(argument, host_value), strict=True)
        )

    def plan(self, grid: Sequence[int]) -> tuple[int, int, int]:
        """Choose programs of the true grid; gives the grid to loop over, whose first axis counts the chosen ones."""
        self.grid = (*grid, *(1,) * (3 - len(grid)))
        self.classes = classes(self.grid, self.budget, self.seed)
        self.programs = sorted(program for group in self.classes for program in group.chosen)
        self.touched = Touched(self.regions, distinct=not self.sampled)
        return len(self.programs), 1, 1

    def begin(self, position: int) -> tuple[int, ...]:
        """Start the program at this position among the chosen; gives its place in the true grid."""
        program = self.programs[position]
        self.touched.begin()
        self.requests[program], self.sectors[program] = self.touched.requested, self.touched.sectors
        return program

    def touch(self, directions: Iterable[Direction], pointers: Any, mask: Any, item_bytes: int) -> None:
        """Count one memory instruction of the running program."""
        for direction in directions:
            self.touched.add(direction, pointers, mask, item_bytes)

    def finish(self) -> None:
        """Sum up once the programs have run. Fails: NotUniform."""
        self.total: Requests = Counter()
        self.sector_total: Counter[Direction] | None = Counter()
        for group in self.classes:
            if not group.complete:
                self._check(group)
            for program in group.chosen[:1] if not group.complete else group.chosen:
                scale = 1 if group.complete else group.size
                self.total.update({key: scale * count for key, count in self.requests[program].items()})
                if self.sector_total is not None:
                    self.sector_total.update({d: scale * count for d, count in self.sectors[program].items()})
            alike = all(self.sectors[program] == self.sectors[group.chosen[0]] for program in group.chosen)
            if not group.complete and not alike:
                self.sector_total = None
        self.distinct = None if self.sampled else self.touched.distinct()
        # Its marks are as large as the tensors.
        del self.touched

    def _check(self, group: GridClass) -> None:
        first = group.chosen[0]
        for other in group.chosen[1:]:
            for key in sorted(self.requests[first].keys() | self.requests[other].keys()):
                one, two = self.requests[first][key], self.requests[other][key]
                if one != two:
                    tensor, direction = key
                    raise NotUniform(
                        f"kernel {self.kernel}, grid {self.grid}: program {first} asks to {direction} {one} B of "
                        f"{tensor}, program {other} {two} B, so {len(self.programs)} programs cannot stand for the "
                        "launch; count a smaller shape, or raise the budget"
                    )

    def _name_of(self, tensor: Any, argument: str) -> str:
        """The caller's name of the tensor that holds this one, else the kernel's name of the argument."""
        low, high = _extent(tensor)
        for name, known in self.names.items():
            first, last = _extent(known)
            if first <= low and high <= last and known.device == tensor.device:
                return name
        return argument


def _extent(tensor: Any) -> tuple[int, int]:
    place = strided(tensor.size(), tensor.stride(), 0, tensor.element_size())
    return tensor.data_ptr(), tensor.data_ptr() + place.stop


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors in an argument: itself, the base of a tensor descriptor or wrapper, or the entries of a tuple."""
    if isinstance(value, tuple):
        for position, entry in enumerate(value):
            yield from _tensors(f"{name}[{position}]", entry)
    elif hasattr(value, "base"):
        yield from _tensors(name, value.base)
    elif hasattr(value, "data_ptr"):
        yield name, value


def total(launches: Sequence[Launch]) -> dict[str, Any]:
    """The `detail` of all launches together."""
    sampled = any(launch.sampled for launch in launches)
    tensors: dict[str, dict[str, int]] = {}
    kernels: dict[str, dict[str, int]] = {}
    for launch in launches:
        kernel = kernels.setdefault(
            launch.kernel, dict.fromkeys(("launches", "programs", "programs_run", "read_bytes", "write_bytes"), 0)
        )
        kernel["launches"] += bool(launch.programs)
        kernel["programs"] += sum(group.size for group in launch.classes)
        kernel["programs_run"] += len(launch.programs)
        for (name, direction), count in launch.total.items():
            kernel[f"{direction}_bytes"] += count
            row = tensors.setdefault(name, {"read_bytes": 0, "write_bytes": 0})
            row[f"{direction}_bytes"] += count
        for (name, direction), count in (launch.distinct or {}).items() if not sampled else ():
            for key in ("distinct_read_bytes", "distinct_write_bytes"):
                tensors[name].setdefault(key, 0)
            tensors[name][f"distinct_{direction}_bytes"] += count
    detail: dict[str, Any] = {"tensors": tensors, "kernels": kernels, "sampled": sampled}
    for key in ("programs", "programs_run"):
        detail[key] = sum(kernel[key] for kernel in kernels.values())
    sectors = [launch.sector_total for launch in launches]
    if all(part is not None for part in sectors):
        for direction in _DIRECTIONS:
            detail[f"sector_{direction}_bytes"] = sum(part[direction] for part in sectors if part is not None)
    return detail
