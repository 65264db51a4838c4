"""A launcher that renders a command of another program: qsub of Grid Engine."""

from hvdtrain.launch import option_groups
from hvdtrain.launch.launcher_api import Launcher, job_from, print_or_execute
from hvdtrain.launch.rendering import LaunchPlan, resource_notes


def submit(options, command):
    job = job_from(options, command)
    argv = ("qsub", "-pe", "mpi", str(job.np), "-q", options.queue, "-b", "y", *job.argv)
    plan = LaunchPlan(launcher="Grid Engine", argv=argv, notes=resource_notes(job))
    return print_or_execute(plan, options.dry_run)


QUEUE = option_groups.option("--queue", default="gpu.q", help="queue (default: gpu.q)")
LAUNCHER = Launcher("a job of Grid Engine", (*option_groups.JOB, QUEUE), submit)
