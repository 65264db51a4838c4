"""`hvdtrain doctor`: find what usually goes wrong before a job is started.

- `examination`: the order: log in, collect, compare, connect, measure; `findings`: what is asked, found and reported
- `host_agent`: one process on each host, and connections between them
- `host_facts`: what a host is like, as JSON; `framework_probe` imports a framework in a child with a deadline
- `job_environment`, `machine`, `network`, `shared_files`, `software`: facts of one host, and findings about them
- `network_links`: which network to use, who reaches whom, and how fast
- `measured_allreduce`, `allreduce_times`: what Horovod reaches, and the ring that it is compared with
"""
