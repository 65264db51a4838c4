"""`hvdtrain doctor`: find what usually goes wrong before a job is started.

- examination.py: the order: log in, collect, compare, connect, measure
- agent.py, agent_streams.py: one process on each host
- facts.py, framework_probe.py: what a host is like, as JSON; frameworks are imported in children with a deadline
- environment.py, files.py, gpu.py, machine.py, network.py, software.py: facts of one host, and what to say of all
- links.py: which network to use, who reaches whom, and how fast
- allreduce.py, measured_allreduce.py: what Horovod reaches, and the model that it is compared with
- findings.py, units.py: what is asked, and table, hints, JSON
"""
