"""`hvdtrain launch local`: all workers on this machine, without ssh and MPI."""
