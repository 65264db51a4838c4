"""Start a job somewhere: on this machine, or through a cluster's own launcher.

A launcher is a module with a LAUNCHER (`launcher_api`) and a line in `hvdtrain.cli.launch`. Light on purpose:
the standard library, `hvdtrain.topology` and `hvdtrain.errors`; never a framework or Horovod.
"""
