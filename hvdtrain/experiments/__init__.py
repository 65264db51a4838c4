"""The classic experiments on distributed training; `hvdtrain bench` runs them and prints their tables.

`worker_scaling`: how much faster several workers are than one, with a fixed global batch (strong scaling) and with a
fixed batch of each worker (weak scaling), beside the ring model.
`update_averages`: what replaced parameter servers: averages by central servers (`ServerAverage`) take W/K times the
time of a link, a ring of allreduces about twice, whatever the number of workers.
`split_model`: stages of which one works at a time are slower than one device; micro batches let them work together.
`emulated_links` gives each of several hosts on this machine a link of limited rate, `measured_run` runs a command.
"""
