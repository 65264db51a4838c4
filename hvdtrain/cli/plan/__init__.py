"""`hvdtrain plan`: what each way to divide a training would take, from measurements of the model and its links.

horovodrun -np 2 python -m hvdtrain plan --task cifar10 --model resnet18 [--verify] [options of train]
"""

import os
import sys
from collections.abc import Sequence

from hvdtrain.cli.plan.options import parse
from hvdtrain.cli.plan.plan_text import print_plan
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.config.parser import parse_train_config
from hvdtrain.errors import UsageError
from hvdtrain.plan.make import make_plan, timed_parallel
from hvdtrain.plan.measured_workload import undivided
from hvdtrain.plan.plan_files import require_folder, write_plan
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.sinks.terminal import stated_columns, table_columns
from hvdtrain.topology import detect_topology


def run(argv: Sequence[str]) -> int:
    """Plan; returns the exit code: 2 where no way fits into the memory.

    Raises:
        UsageError: an option that neither this nor train has.
    """
    options, train_argv = parse(argv)
    config = parse_train_config(train_argv)
    topology = detect_topology(os.environ)
    kind = load_task_class(config)
    parallel = timed_parallel(kind.framework, topology.size)
    with open_job(undivided(config), kind, topology, parallel) as (setup, comm):
        agree(comm, lambda: require_folder(options.out) if comm.topology.is_root else None, "hvdtrain.plan.folder")
        plan = make_plan(setup, config, kind, comm, options.request)
        if comm.topology.is_root:
            width = table_columns(sys.stdout, comm.topology.launcher, stated_columns())
            print_plan(plan, comm.topology.size, options.all_tables, width)
            print("\n".join(write_plan(plan, config, kind, comm.topology.size, options.out)), flush=True)
        return 0 if broadcast_json(comm, plan.fits, "hvdtrain.plan.fits") else UsageError.exit_code
