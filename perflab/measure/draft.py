"""A record in the making: what is known of a case so far, and its worker while it has one."""

from __future__ import annotations

from dataclasses import dataclass, field

from perflab.contract import Stage
from perflab.measure.pool import Worker, WorkerFailure
from perflab.plan import Case
from perflab.record import Accuracy, Bytes, Compile, Execution, Latency, Memory, Reason, Record, Status, Step, Traffic

#: Codes of a refused answer; any other failure is one of the process, not of the answer.
WRONG = {"wrong_output", "wrong_shape", "wrong_dtype", "wrong_value", "not_finite", "inputs_changed"}
#: Codes of what a machine or a toolkit cannot do, which is nobody's mistake.
SKIPPED = {"unsupported_shape", "not_expressible", "missing_compiler", "no_backward"}


@dataclass
class Draft:
    """A record in the making."""

    case: Case
    execution: Execution
    status: Status = "passed"
    reason: Reason | None = None
    accuracy: Accuracy | None = None
    traffic: list[Traffic] = field(default_factory=list)
    memory: Memory | None = None
    step: Step | None = None
    compile: Compile | None = None
    remarks: list[str] = field(default_factory=list)
    worker: Worker | None = None

    def fail(self, failure: WorkerFailure) -> None:
        """Take the failure as the case's outcome."""
        self.status = "wrong" if failure.code in WRONG else "skipped" if failure.code in SKIPPED else "failed"
        self.reason = Reason(code=failure.code, text=failure.text)
        self.close()

    def close(self) -> None:
        """End the worker, if one is kept."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def record(self, run_id: str, contract: Stage, latency: Latency | None = None) -> Record:
        """The finished record."""
        case, passed = self.case, self.status == "passed"
        fewest = contract.compulsory(case.shape, case.dtype, case.pass_)
        return Record(
            run_id=run_id,
            case_id=case.id,
            stage=case.implementation.stage,
            implementation=case.implementation.name,
            toolkit=case.implementation.toolkit,
            pass_=case.pass_,
            shape=case.shape,
            label=case.label,
            baseline=contract.baseline,
            dtype=case.dtype,
            device=case.device,
            status=self.status,
            reason=self.reason,
            execution=self.execution if passed else None,
            accuracy=self.accuracy if passed else None,
            latency=latency if passed else None,
            compulsory=Bytes(read_bytes=fewest.read_bytes, write_bytes=fewest.write_bytes) if fewest else None,
            traffic=self.traffic if passed else [],
            memory=self.memory if passed else None,
            step=self.step if passed else None,
            compile=self.compile,
            warnings=self.remarks,
        )
