"""Writes what a launcher told this process: python -S environment_dump.py FOLDER. One file a process, named by host.

Only names that say where a process is among the others: no paths, no addresses of people's networks, no secrets.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

TELLING = re.compile(
    r"HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|CONTROLLER|CPU_OPERATIONS|GLOO_IFACE)"
    r"|OMPI_(COMM_WORLD_\w+|UNIVERSE_SIZE|WORLD_\w+|NUM_APP_CTX|TOOL_NAME|VERSION)"
    r"|PMIX_(RANK|NAMESPACE|HOSTNAME|SECURITY_MODE|VERSION)|PRTE_(LAUNCHED|SHARED_FS)|NCCL_SOCKET_IFNAME"
    r"|PMI_(RANK|SIZE|FD|ID|JOBID|APPNUM|SPAWNED|PORT|LOCAL\w+)|MPI_(LOCALNRANKS|LOCALRANKID)"
    r"|I_MPI_(HYDRA_SERVER_PORT|RANK\w*|LOCAL\w*)|HYDI_\w+"
    r"|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|OMP_NUM_THREADS|TORCHELASTIC_(RUN_ID|\w+_(RESTARTS|COUNT|STORE))"
    r"|ENVIRONMENT|SLURM(D_NODENAME|_(JOB_?ID|STEP_?ID|PROCID|LOCALID|NODEID|GTIDS|N(NODES|PROCS|TASKS)|NODELIST|MPI_TYPE"
    r"|TASKS_PER_NODE|NTASKS_PER_NODE|JOB_N(ODELIST|UM_NODES)|STEP_(NODELIST|NUM_\w+|TASKS_PER_NODE|LAUNCHER_PORT)))"
)

if __name__ == "__main__":
    lines = [f"{name}={value}\n" for name, value in sorted(os.environ.items()) if TELLING.fullmatch(name)]
    Path(sys.argv[1], f"{socket.gethostname()}.{os.getpid()}").write_text("".join(lines))
