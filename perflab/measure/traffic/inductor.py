"""Traffic of compiled code: what the schedule that Inductor generated reads and writes, kernel by kernel.

`schedule` says how one graph is counted. This module makes Inductor compile under our eyes, and adds up the graphs
that the call really runs, as often as it runs them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from perflab.measure.traffic.schedule import KernelTraffic, kernels_of
from perflab.record import Traffic


class NothingCompiled(RuntimeError):  # a finding, which the harness turns into a warning
    """The call ran no graph that Inductor compiled."""


def count(call: Callable[[], object], prepare: Callable[[], object] | None = None) -> Traffic:
    """Run `call` once, which runs functions wrapped in torch.compile, and count the kernels of the graphs it runs.

    `prepare` runs first; what it compiles is known, what it runs is not counted.

    Everything compiled in this process before is forgotten and `call` compiles anew: only generating code shows the
    schedule. Graph caches are off meanwhile; the cache of compiled kernels is not. Backward graphs count when `call`
    runs them. `launches` is the number of scheduled kernels that move bytes (on the cpp backend several may share one
    C++ function). `detail` has `kernels` (one entry per kernel and graph, times `runs`), `graphs`, and
    `graph_breaks`: operations between graphs run eagerly and are not counted. Fails: NothingCompiled.
    """
    torch._dynamo.reset()
    breaks = sum(counters["graph_break"].values())
    graphs: list[_Graph] = []
    with _watched(graphs):
        if prepare is not None:
            prepare()
            for graph in graphs:
                graph.runs = 0
        call()
    ran = [graph for graph in graphs if graph.runs]
    if not ran:
        raise NothingCompiled("the call ran no graph compiled by Inductor: is the function wrapped in torch.compile?")
    return Traffic(
        source="compiler",
        read_bytes=sum(g.runs * k.read_bytes for g in ran for k in g.kernels),
        write_bytes=sum(g.runs * k.write_bytes for g in ran for k in g.kernels),
        launches=sum(g.runs * len(g.kernels) for g in ran),
        collector=f"inductor {torch.__version__} {'+'.join(sorted({g.backend for g in ran}))}",
        detail={
            "kernels": [k.as_dict() | {"graph": i, "runs": g.runs} for i, g in enumerate(ran) for k in g.kernels],
            "graphs": len(ran),
            "graph_breaks": sum(counters["graph_break"].values()) - breaks,
        },
    )


class _Graph:
    """One compiled graph: its kernels, and how often it ran."""

    def __init__(self, graph: Any) -> None:
        self.kernels: list[KernelTraffic] = kernels_of(graph)
        self.backend = "+".join(sorted(_backend(device) for device in graph.device_types))
        self.runs = 0


def _backend(device: str) -> str:
    return str(getattr(inductor_config, f"{device}_backend", device))


@contextmanager
def _watched(graphs: list[_Graph]) -> Iterator[None]:
    """While entered, Inductor generates code for every graph, and each graph it compiles is appended to `graphs`."""
    compile_to_module = GraphLowering.compile_to_module
    wrapped: list[tuple[Any, Any]] = []

    @functools.wraps(compile_to_module)
    def compile_and_count(lowering: Any) -> Any:
        module = compile_to_module(lowering)
        graph = _Graph(lowering)
        graphs.append(graph)
        run = module.call

        def counted(*args: Any, **kwargs: Any) -> Any:
            graph.runs += 1
            return run(*args, **kwargs)

        # Python modules are cached by path: what is put into one must be taken out again.
        wrapped.append((module, run))
        module.call = counted
        return module

    with ExitStack() as stack:
        stack.enter_context(inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
        stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
        GraphLowering.compile_to_module = compile_and_count
        try:
            yield
        finally:
            GraphLowering.compile_to_module = compile_to_module
            for module, run in reversed(wrapped):
                module.call = run
