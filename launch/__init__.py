"""Start a job somewhere: on this machine, or through a cluster's own launcher.

Light on purpose: the standard library, `hvdtrain.topology` and `hvdtrain.errors`; never a framework or Horovod.
"""
