"""The command line. Commands import what they need when called, so that help and plans are fast."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from perflab.errors import Exit, Interrupted, PerflabError

app = typer.Typer(
    name="perflab",
    help="Checked, comparable numbers for kernel speed and memory traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run_app = typer.Typer(help="Measure a suite, or one case.", no_args_is_help=True)
dashboard_app = typer.Typer(help="Pages for a browser.", no_args_is_help=True)
app.add_typer(run_app, name="run")
app.add_typer(dashboard_app, name="dashboard")

Kernels = Annotated[
    list[Path] | None, typer.Option("--kernels", help="Also take implementations from this file or folder.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Results = Annotated[Path | None, typer.Option("--results", help="Where runs are written and read.")]
WorkspaceOption = Annotated[
    Path | None, typer.Option("--workspace", help="Folder with kernels/ and suites/; default: the nearest above.")
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only implementations that match this glob.")]
Format = Annotated[str, typer.Option("--format", help="table, json, csv or markdown.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@run_app.command("suite")
def run_suite(
    name: Annotated[str, typer.Argument(help="Suite; `perflab list suites` names them.")] = "quick",
    only: Only = None,
    device: Device = "auto",
    kernels: Kernels = None,
    results: Results = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Finish this interrupted run.")] = None,
    format_: Format = "table",
    quiet: Quiet = False,
    workspace: WorkspaceOption = None,
) -> None:
    """Check and measure every case of a suite, then print the table."""
    from perflab.commands import run

    chosen = run.Choice(only or [], device, kernels or [], results, workspace, format_, quiet)
    raise typer.Exit(run.resume(resume, chosen) if resume else run.suite(name, chosen))


@run_app.command("case")
def run_case(
    implementation: Annotated[str, typer.Argument(help="Full name, such as mhc/pre/eager.")],
    sizes: Annotated[list[str] | None, typer.Option("-p", help="Size of a dim: -p T=4096.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, fp16 or fp32.")] = "bf16",
    pass_: Annotated[
        str | None, typer.Option("--pass", help="forward, backward or forward_backward; default: the stage's first.")
    ] = None,
    device: Device = "auto",
    kernels: Kernels = None,
    results: Results = None,
    format_: Format = "table",
    quiet: Quiet = False,
    workspace: WorkspaceOption = None,
) -> None:
    """Check and measure one implementation, beside the eager one."""
    from perflab.commands import run

    chosen = run.Choice([], device, kernels or [], results, workspace, format_, quiet)
    raise typer.Exit(run.case(implementation, sizes or [], dtype, pass_, chosen))


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="suites, stages, implementations, metrics, charts or runs.")],
    kernels: Kernels = None,
    workspace: WorkspaceOption = None,
) -> None:
    """What there is, one line each."""
    from perflab.commands import listing

    listing.show(kind, kernels or [], workspace)


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help="Suite.")] = "quick",
    only: Only = None,
    device: Device = "auto",
    kernels: Kernels = None,
    workspace: WorkspaceOption = None,
) -> None:
    """What a suite would measure here, and what it would skip and why."""
    from perflab.commands import planning

    planning.show(name, only or [], device, kernels or [], workspace)


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(help="Run; default: the newest.")] = None,
    format_: Format = "table",
    results: Results = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Print a run again, with its derived columns."""
    from perflab.commands import showing

    showing.show(run, format_, results, workspace)


@app.command()
def keep(
    run: Annotated[str | None, typer.Argument(help="Run; default: the newest.")] = None,
    results: Results = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Move a run out of the git-ignored part of results/, to be committed."""
    from perflab.commands import showing

    showing.keep(run, results, workspace)


@app.command()
def overhead(
    model: Annotated[str, typer.Option("--model", help="Preset of the decoder, such as 27b.")] = "27b",
    machine: Annotated[
        str, typer.Option("--machine", help="h200, ..., here, or a TOML file's path (perflab/README.md).")
    ] = "h200",
    mfu: Annotated[
        float | None, typer.Option("--mfu", help="Utilisation: the plain step's FLOPs, of the peak.")
    ] = None,
    achieved: Annotated[
        float | None, typer.Option("--achieved", help="Bandwidth of the subject's kernels, of the peak.")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option("--micro-batch", help="Sequences of a micro-batch.")] = None,
    pipeline: Annotated[int | None, typer.Option("--pipeline", help="Pipeline stages.")] = None,
    link: Annotated[str, typer.Option("--link", help="Between stages: network or nvlink.")] = "network",
    peak: Annotated[float | None, typer.Option("--peak", help="Peak FLOP/s of the machine.")] = None,
    assume: Annotated[list[str] | None, typer.Option("--assume", help="NAME=VALUE of any assumption.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json or markdown.")] = "table",
    results: Results = None,
    workspace: WorkspaceOption = None,
) -> None:
    """What the residual streams add to a training step, projected from counted bytes; measures nothing."""
    from perflab.commands import overhead as command

    named = {"utilisation": mfu, "achieved": achieved, "micro_batch": micro_batch, "pipeline": pipeline, "peak": peak}
    given = command.assumed(assume or [], named)
    command.show(command.Choice(model, machine, given, link, format_), results, workspace)


@app.command()
def doctor(
    workspace: WorkspaceOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the measurements.")] = False,
) -> None:
    """What this machine can do, in plain words, and how to get more."""
    from perflab.commands import doctor as command

    command.show(workspace, quick)


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="New folder.")]) -> None:
    """Start a workspace of your own: a stage, an implementation, a suite."""
    from perflab.commands import init as command

    command.create(folder)


@dashboard_app.command("build")
def dashboard_build(
    run: Annotated[str | None, typer.Argument(help="Run; default: the newest.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; default: ./site.")] = None,
    results: Results = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Write a folder of pages that opens offline."""
    from perflab.commands import dashboard

    dashboard.build(run, out, results, workspace)


@dashboard_app.command("serve")
def dashboard_serve(
    out: Annotated[Path | None, typer.Option("--out", help="Folder that was built; default: ./site.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
) -> None:
    """Serve the built folder to browsers on this machine."""
    from perflab.commands import dashboard

    dashboard.serve(out, port)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Checked, comparable numbers for kernel speed and memory traffic."""
    if version:
        from perflab import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Entry point: turns every expected error into one line on stderr and an exit code."""
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    usage_error = typer.BadParameter.__mro__[1]
    try:
        code = int(app(arguments, prog_name="perflab", standalone_mode=False) or Exit.FINE)
        sys.stdout.flush()
        return code
    except PerflabError as error:
        return _complain(str(error), error.exit_code)
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader left; nothing that Python still flushes at exit can reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FINE
    except OSError as error:
        return _complain(f"{error.filename or 'output'}: {error.strerror}", Exit.USAGE)
    except Exception as error:
        if isinstance(error, usage_error):
            return _complain(_usage(error, arguments), Exit.USAGE)
        raise


def _complain(message: str, code: int) -> int:
    print(f"perflab: {' '.join(message.split())}", file=sys.stderr)
    return code


def _usage(error: Exception, arguments: list[str]) -> str:
    """The parser's message, with near command names where it offers none."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    commands = getattr(getattr(context, "command", None), "commands", {})
    if "No such command" in message and "Did you mean" not in message:
        near = [match for word in arguments for match in difflib.get_close_matches(word, commands, n=2)]
        message += f" Did you mean {' or '.join(near)}?" if near else f" There are: {', '.join(commands)}."
    return message
