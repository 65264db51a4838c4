"""Start a job somewhere: on this machine, or through a cluster's own launcher.

This folder is the package `hvdtrain.launch`, by the link hvdtrain/launch: other packages and users' files are named
`launch` too. From the root of a checkout, `launch.sagemaker` and the like work as well.

Light on purpose: the standard library, `hvdtrain.topology` and `hvdtrain.errors`; never a framework or Horovod.
"""
