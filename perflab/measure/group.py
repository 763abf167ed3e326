"""Measuring one group: check every case first, then sample the right ones together."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from perflab import machine, remarks
from perflab.analyse.overhead import blocks, overhead
from perflab.analyse.stats import median, relative_half_width
from perflab.measure.bystanders import Bystanders
from perflab.measure.draft import Draft
from perflab.measure.pool import Pool, Worker, WorkerFailure
from perflab.measure.sampling import sample_group, sample_rounds
from perflab.measure.task import execution, task_for
from perflab.plan import Group
from perflab.record import Accuracy, Compile, Latency, Memory, Record, Step, Traffic
from perflab.suite import Suite

#: Toolkits that no source of bytes covers yet.
UNCOUNTED = ("tilelang", "peer")
#: A count below this share of the compulsory bytes has missed some of what was moved.
LEAST_SHARE = 0.999
#: A profiled step that is further than this from plain ones, without the profiler's share, tells less of them.
PROFILE_ERROR = 0.1
#: Work is started in this order, so that the long pieces do not come last.
LONGEST_FIRST = ("compiled", "tilelang", "triton", "peer", "eager")


@dataclass(frozen=True)
class GroupRun:
    """Measures one group with the workers of `pool`; gives each record to `emit` as soon as it is complete."""

    pool: Pool
    suite: Suite
    group: Group
    run_id: str
    seed: int
    emit: Callable[[Record], None]

    def measure(self) -> None:
        """Check all cases side by side, then sample those that are right and native, one at a time."""
        drafts = [Draft(case, execution(case.implementation.toolkit, case.device)) for case in self.group.cases]
        try:
            self._prepare_all(drafts)
            timed = {draft.case.id: draft for draft in drafts if draft.worker is not None}
            workers = {case_id: draft.worker for case_id, draft in timed.items() if draft.worker}
            bystanders = Bystanders([os.getpid(), *(worker.pid for worker in workers.values())])
            if self._is_step:
                outcomes = sample_rounds(workers, self.suite.timing, self.seed, self._baseline)
                self._remark_on_overheads(timed, outcomes)
                self._attribute_all([timed[case_id] for case_id, one in outcomes.items() if isinstance(one, Latency)])
            else:
                outcomes = sample_group(workers, self.suite.timing, self.seed)
            share = bystanders.share()
            for case_id, outcome in outcomes.items():
                if share > remarks.BUSY_SHARE:
                    timed[case_id].remarks.append(remarks.busy(share))
                self._finish(timed[case_id], outcome)
        finally:
            for draft in drafts:
                draft.close()

    @property
    def _is_step(self) -> bool:
        return self.group.pass_ == "step"

    @property
    def _baseline(self) -> str:
        """The id of the case that the others are compared with; empty if it is not in the group."""
        stem = self.group.stage.contract.baseline
        return next((case.id for case in self.group.cases if case.implementation.stem == stem), "")

    def _remark_on_overheads(self, timed: Mapping[str, Draft], outcomes: Mapping[str, Latency | WorkerFailure]) -> None:
        """Say of every overhead that is not known well enough that it is undecided."""
        baseline, wanted = outcomes.get(self._baseline), 2 * self.suite.timing.overhead
        for case_id, outcome in outcomes.items():
            if case_id == self._baseline or isinstance(outcome, WorkerFailure):
                continue
            found = overhead(outcome, baseline) if isinstance(baseline, Latency) else None
            if found is None:
                timed[case_id].remarks.append(remarks.no_overhead())
            elif found.width > wanted:
                timed[case_id].remarks.append(remarks.undecided(found.width, wanted))

    def _prepare_all(self, drafts: Sequence[Draft]) -> None:
        """Check, count and compile, as many at a time as there are cores; emit what needs no timing."""
        jobs = [(draft, work) for draft in drafts for work in (self._check, *self._extra_work(draft))]
        jobs.sort(key=lambda job: LONGEST_FIRST.index(job[0].case.implementation.toolkit))
        left = Counter(draft.case.id for draft, _ in jobs)
        # Of whole models a GPU may hold one only.
        beside = 1 if self._is_step and self.group.device == "cuda" else machine.physical_cores()
        with ThreadPoolExecutor(beside) as threads:
            running = {threads.submit(work, draft): draft for draft, work in jobs}
            try:
                for job in as_completed(running):
                    job.result()
                    draft = running[job]
                    left[draft.case.id] -= 1
                    if not left[draft.case.id] and draft.worker is None:
                        self._emit(draft)
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise

    def _extra_work(self, draft: Draft) -> list[Callable[[Draft], None]]:
        """What can be found out beside the check, in workers of its own."""
        if draft.case.blocked or self._is_step:
            return []
        toolkit, native = draft.case.implementation.toolkit, draft.execution == "native"
        return [
            *([self._compile] if toolkit in ("triton", "tilelang") else []),
            *([self._count_interpreted] if toolkit == "triton" and native and self.suite.check.interpret else []),
        ]

    def _check(self, draft: Draft) -> None:
        """Load and check the case; count its bytes where its own worker can; keep the worker if it will be timed."""
        case = draft.case
        if case.blocked:
            draft.status, draft.reason = case.blocked
            return
        task = task_for(case, self.group, self.suite.check.tokens)
        draft.worker = worker = self.pool.start(draft.execution)
        seeds = [self.seed + draw for draw in range(self.suite.check.draws)]
        try:
            worker.ask("open", task=task)
            if case.implementation.toolkit == "compiled" and not self._is_step:
                # Counting reads the schedule of the first compilation, so it comes first.
                start = time.perf_counter()
                self._count(draft, worker)
                seconds = time.perf_counter() - start
                draft.compile = Compile(seconds=seconds, target=f"inductor {case.device}")
            draft.accuracy = Accuracy.model_validate(worker.ask("check", seeds=seeds))
            interpreted = draft.execution == "interpreted" and self.suite.check.interpret and not self._is_step
            if case.implementation.toolkit == "eager" or interpreted:
                self._count(draft, worker)
            self._measure_memory(draft, worker)
            if self._is_step and draft.execution != "native":
                self._describe(draft, worker)
        except WorkerFailure as failure:
            draft.fail(failure)
            return
        if self._is_step and case.implementation.toolkit != "eager":
            draft.remarks.append(remarks.no_traffic("whole steps are counted of eager code only"))
        elif draft.execution == "interpreted" and not self.suite.check.interpret:
            draft.remarks.append(remarks.no_traffic("the suite says interpret = false"))
        elif case.implementation.toolkit in UNCOUNTED:
            draft.remarks.append(remarks.no_traffic(f"no source counts {case.implementation.toolkit} code yet"))
        self._remark_on_check(draft, draft.accuracy)
        if draft.execution != "native":
            draft.close()

    def _count(self, draft: Draft, worker: Worker) -> None:
        """The case's bytes, unless the source saw less than must move."""
        answer = self._ask(draft, worker, "traffic", remarks.no_traffic)
        if answer is None:
            return
        traffic, contract = Traffic.model_validate(answer), self.group.stage.contract
        fewest = contract.compulsory(self.group.shape, self.group.dtype, self.group.pass_)
        if fewest and traffic.read_bytes + traffic.write_bytes < fewest.total_bytes * LEAST_SHARE:
            draft.remarks.append(remarks.traffic_below_fewest(traffic.source))
        else:
            draft.traffic.append(traffic)

    def _measure_memory(self, draft: Draft, worker: Worker) -> None:
        """What the case keeps and needs."""
        answer = self._ask(draft, worker, "memory", remarks.no_memory)
        draft.memory = None if answer is None else Memory.model_validate(answer)

    def _describe(self, draft: Draft, worker: Worker) -> None:
        """What a step is made of, by the model's own account."""
        draft.step = Step.model_validate(worker.ask("describe"))

    def _attribute_all(self, drafts: Sequence[Draft]) -> None:
        """Where each step's time goes. What profiling an event takes is the machine's, so all profiles tell it."""
        costs: list[float] = []
        for draft in drafts:
            if draft.worker is not None:
                try:
                    costs += draft.worker.ask("profiler_costs")
                except WorkerFailure as failure:
                    draft.fail(failure)
        for draft in drafts:
            if draft.worker is None:
                continue
            try:
                self._describe(draft, draft.worker)
                found = self._ask(
                    draft, draft.worker, "attribute", remarks.no_parts, profiler_s=max(0.0, median(costs or [0.0]))
                )
            except WorkerFailure as failure:
                draft.fail(failure)
                continue
            if found and draft.step:
                draft.step = Step.model_validate(draft.step.model_dump() | found)
                if abs(draft.step.profile_error or 0.0) > PROFILE_ERROR:
                    draft.remarks.append(remarks.profile_off(draft.step.profile_error or 0.0))

    def _ask(self, draft: Draft, worker: Worker, request: str, remark: Callable[[str], str], **arguments: Any) -> Any:
        """The answer; None, with a remark, if there is none. Fails: WorkerFailure if the worker died of it."""
        try:
            return worker.ask(request, **arguments)
        except WorkerFailure as failure:
            if not failure.alive:
                raise
            draft.remarks.append(remark(failure.text))
            return None

    def _count_interpreted(self, draft: Draft) -> None:
        """Count a Triton case's bytes by the interpreter, while its own worker runs on the GPU."""
        worker = self.pool.start("interpreted")
        try:
            worker.ask("open", task=task_for(draft.case, self.group, self.suite.check.tokens, device="cpu"))
            self._count(draft, worker)
        except WorkerFailure as failure:
            draft.remarks.append(remarks.no_traffic(failure.text))
        finally:
            worker.close()

    def _compile(self, draft: Draft) -> None:
        """Compile the case for Hopper in a worker of its own."""
        worker = self.pool.start("compiler")
        try:
            worker.ask("open", task=task_for(draft.case, self.group, self.suite.check.tokens))
            draft.compile = Compile.model_validate(worker.ask("compile"))
        except WorkerFailure as failure:
            draft.remarks.append(remarks.no_compile(failure.text))
            return
        finally:
            worker.close()
        spilling = [kernel for kernel in draft.compile.kernels if kernel.spill_bytes]
        if spilling:
            draft.remarks.append(remarks.spills(spilling))

    def _remark_on_check(self, draft: Draft, accuracy: Accuracy) -> None:
        if accuracy.deterministic is False:
            draft.remarks.append(remarks.not_deterministic())
        smaller = {dim: size for dim, size in draft.case.shape.items() if accuracy.shape[dim] != size}
        if self._is_step and smaller:
            draft.remarks.append(remarks.checked_smaller({dim: accuracy.shape[dim] for dim in smaller}))
            return
        for dim, size in smaller.items():
            draft.remarks.append(remarks.checked_on_fewer_tokens(dim, accuracy.shape[dim], size, draft.execution))

    def _finish(self, draft: Draft, outcome: Latency | WorkerFailure) -> None:
        """Emit a timed case: with its latency, or with what kept it from one."""
        if isinstance(outcome, WorkerFailure):
            draft.fail(outcome)
            self._emit(draft)
            return
        if draft.status != "passed":
            self._emit(draft)
            return
        # Steps of one block share their round: the blocks, not the steps, are what varies.
        independent = blocks(outcome) if self._is_step else outcome.samples_s
        width, wanted = relative_half_width(independent), self.suite.timing.half_width
        if width > wanted:
            draft.remarks.append(remarks.unstable(width, wanted, outcome.stop_reason))
        if outcome.host_bound:
            taken = len(outcome.samples_s) + outcome.discarded
            draft.remarks.append(remarks.host_bound(outcome.host_bound, taken))
        draft.close()
        self._emit(draft, outcome)

    def _emit(self, draft: Draft, latency: Latency | None = None) -> None:
        self.emit(draft.record(self.run_id, self.group.stage.contract, latency))
