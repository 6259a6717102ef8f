"""A step that the command runs: drawn from its journal meanwhile, and stopped by signals."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.cli import _jobs
from retrytemplate.cli._bar import Bar
from retrytemplate.cli._following import JsonLines, PlainLines, followed, on_terminal
from retrytemplate.cli._signals import stopped_by_signals
from retrytemplate.cli._words import moment
from retrytemplate.cli.usage import WorkError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.batch import ChunkStep, RunStatus
    from retrytemplate.cli._following import Teller

__all__ = ["run_job"]

# Of runs under way at once.
MOST = 10_000


def run_job(args: argparse.Namespace) -> RunStatus:
    """Run the step that the arguments name; how its run stands in the end."""
    parameters = _jobs.parameters_of(args.parameter)
    output = sys.stdout
    # What is for machines is all that stands there: the step's own words go elsewhere.
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        step = _jobs.load_object(args.job)
        try:
            with _drawing(args, output) as tell:
                return _performed(step, parameters, args, tell)
        except JobRepositoryError as error:
            raise WorkError(str(error)) from None
        finally:
            step.repository.close()


@contextmanager
def _drawing(args: argparse.Namespace, output: Any) -> Iterator[Teller]:
    if args.json:
        yield JsonLines(output)
    elif on_terminal():
        with Bar().shown() as bar:
            yield bar
    else:
        yield PlainLines()


def _performed(
    step: ChunkStep, parameters: dict[str, Any], args: argparse.Namespace, tell: Teller
) -> RunStatus:
    from retrytemplate.batch import Runs

    runs, here = Runs(step.repository), _process(worker_name())

    def mine() -> RunStatus | None:
        """The run of this step that this process has."""
        under_way = runs.page(step=step.name, status="running", limit=MOST)
        return next((run for run in under_way if _process(run.worker or "") == here), None)

    with stopped_by_signals(step.stop, tell.notice), followed(mine, tell, args.interval):
        report = _jobs.performed(
            step,
            lambda: step.run(parameters, args.on_existing),
            lambda: step.run_async(parameters, args.on_existing),
            asynchronous=args.asynchronous,
        )
    run = runs.find(report.run_id)
    if run is None:
        raise WorkError(f"run {report.run_id} is gone from the journal")
    tell(run)
    if report.already_completed and run.ended is not None:
        tell.notice(
            f"run {run.run_id} was completed at {moment(run.ended)}: nothing was left to do; "
            "to begin again: --on-existing restart"
        )
    return run


def _process(worker: str) -> str:
    """The part of a worker's name that its process's others share."""
    return worker.rpartition("-")[0]
