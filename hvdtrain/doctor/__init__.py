"""`hvdtrain doctor`: find what usually goes wrong before a job is started.

- question.py, examination.py: what is asked, and the order: log in, collect, compare, connect, measure
- agent*.py: one process on each host, and the doctor's end of it
- facts*.py, framework_probe.py: what a host is like, as JSON; frameworks are imported in children with a deadline
- checks_*.py: pure functions, facts of all hosts -> findings
- addresses.py, links.py: which network to use, who reaches whom, and how fast
- allreduce.py, measured_allreduce.py, ring_model.py: what Horovod reaches, and the model that it is compared with
- findings.py, report.py, units.py: table, hints, JSON
"""
