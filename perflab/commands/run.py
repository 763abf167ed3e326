"""`perflab run suite` and `perflab run case`."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from perflab import store
from perflab import suite as suites
from perflab.commands import common
from perflab.errors import Exit, Interrupted, PerflabError
from perflab.plan import Plan, make_plan
from perflab.present.progress import RunProgress
from perflab.record import Record
from perflab.run import Order, execute, same_circumstances

#: Sizes of `run case` where -p gives none.
DEFAULT_SIZES = {"T": 2048, "n": 4, "C": 2560}


@dataclass(frozen=True)
class Choice:
    """What the command line chose, the same for every way to run."""

    only: Sequence[str]
    device: str
    kernels: Sequence[Path]
    results: Path | None
    workspace: Path | None
    format: str
    quiet: bool


def suite(name: str, choice: Choice) -> int:
    """Run a suite of the workspace. Gives the exit code."""
    place, _ = common.open_workspace(choice.workspace, (), choice.results)
    return _run(name, suites.load(name, place.suites), choice)


def case(implementation: str, sizes: Sequence[str], dtype: str, pass_: str | None, choice: Choice) -> int:
    """Run one implementation, with the stage's baseline beside it. Gives the exit code."""
    _, catalogue = common.open_workspace(choice.workspace, choice.kernels, choice.results)
    chosen = catalogue.implementation(implementation)
    stage = catalogue.stage(chosen.stage)
    given = dict(_size(text) for text in sizes)
    for dim in given:
        if dim not in stage.contract.dims:
            raise PerflabError(f"-p {dim}: {stage.name} has the dims {', '.join(stage.contract.dims)}")
    preset = next(iter(stage.contract.presets), None)
    shape = given if preset else {dim: given.get(dim, DEFAULT_SIZES.get(dim, 1)) for dim in stage.contract.dims}
    group = {
        "stages": [stage.name],
        "preset": preset,
        "shape": shape,
        "dtypes": [dtype],
        "passes": [pass_] if pass_ else [],
    }
    order = suites.parse({"question": f"How does {implementation} do?", "group": [group]}, "run case")
    names = [glob.escape(chosen.name), glob.escape(f"{stage.name}/{stage.contract.baseline}")]
    return _run(f"case-{chosen.stem}", order, _with_only(choice, names))


def resume(name: str, choice: Choice) -> int:
    """Finish an interrupted run: the cases that have no record yet. Gives the exit code."""
    place, _ = common.open_workspace(choice.workspace, (), choice.results)
    run = store.find(place.results, name)
    about = run.about()
    if about.get("interrupted") is False:
        raise PerflabError(f"{run.id} is complete; nothing to resume")
    try:
        options: dict[str, Any] = about["options"]
        kernels = [Path(path) for path in options["kernels"]]
        only, device, name, data = options["only"], about["device"], about["suite_name"], about["suite"]
    except (KeyError, TypeError) as error:
        raise PerflabError(f"{run.folder}/run.json: no {error}: the run stopped before it began; start anew") from error
    earlier = Choice(only, device, kernels, choice.results, choice.workspace, choice.format, choice.quiet)
    if differs := same_circumstances(about, place.root):
        raise PerflabError(f"{run.id} cannot be finished: the {differs} is not what it was then; start a new run")
    return _run(name, suites.parse(data, f"{run.folder}/run.json"), earlier, run)


def _run(name: str, suite_: suites.Suite, choice: Choice, run: store.Run | None = None) -> int:
    common.check_format(choice.format)
    place, catalogue = common.open_workspace(choice.workspace, choice.kernels, choice.results)
    device, available = common.choose_device(choice.device)
    plan = make_plan(suite_, catalogue, device, choice.only, available)
    if not any(plan.cases()):
        raise PerflabError(
            "nothing to measure: of what the suite names no implementation is left; see its `implementations`, and "
            "`perflab plan`"
        )
    if run is None:
        run = store.create(place.results, name)
    else:
        _nothing_vanished(run, plan)
    left = plan.without({record.case_id for record in run.records()})
    options = {"only": list(choice.only), "kernels": [str(path.resolve()) for path in choice.kernels]}
    order = Order(name, suite_, left, device, place, options)
    try:
        with run.lock().acquire(timeout=0):
            _execute(order, run, choice.quiet)
    except filelock.Timeout as error:
        raise PerflabError(f"{run.id} is being measured by another process") from error
    finally:
        if not run.records():
            store.remove_if_empty(run)
    common.print_run(run, place, choice.format)
    if not choice.quiet:
        print(f"records: {run.folder}", file=sys.stderr)
    return exit_code(run.records())


def _execute(order: Order, run: store.Run, quiet: bool) -> None:
    with RunProgress(len(list(order.plan.cases())), quiet) as progress:
        try:
            execute(order, run, progress)
        except Interrupted:
            if kept := len(run.records()):
                print(f"perflab: {kept} records kept; `--resume {run.id}` finishes the run", file=sys.stderr)
            raise


def _nothing_vanished(run: store.Run, plan: Plan) -> None:
    """Refuse to finish a run whose cases can no longer all be measured."""
    gone = set(run.about().get("cases") or []) - {case.id for case in plan.cases()}
    if gone:
        raise PerflabError(
            f"{run.id} cannot be finished: {sorted(gone)[0]} is no longer there ({len(gone)} cases gone)"
        )


def exit_code(records: Sequence[Record]) -> Exit:
    """1 if an implementation is wrong or failed, 3 if nothing was measured, else 0."""
    if any(record.status in ("wrong", "failed") for record in records):
        return Exit.REGRESSION
    if not any(record.status == "passed" for record in records):
        return Exit.UNDECIDED
    return Exit.FINE


def _with_only(choice: Choice, only: Sequence[str]) -> Choice:
    return Choice(only, choice.device, choice.kernels, choice.results, choice.workspace, choice.format, choice.quiet)


def _size(text: str) -> tuple[str, int]:
    dim, _, value = text.partition("=")
    if not dim or not value.isdecimal():
        raise PerflabError(f"-p {text}: expected DIM=SIZE, such as T=4096")
    return dim, int(value)
