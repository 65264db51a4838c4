"""Where workers may run: hosts and slots, from whatever names them; each gives `Host`s in the order of their ranks.

host.parse_host_list("a:4,b:4")             -H
host_files.read_hostfile(path)              Open MPI's, MPICH's and plain files; /etc/mpi/hostfile
host_files.read_rank_table(path)            JSON: servers, devices, rank ids
platform_hosts.platform_hosts(os.environ)   what Slurm, PBS, LSF, the MPI Operator or SageMaker say about this job
"""
