"""Workers in places that a cluster gives by its own means: what the launchers of Ray and of Spark share.

The launcher starts a `broker`, a process that talks to the cluster. In each place that the cluster gives, a seat runs:
an actor of Ray, or a task of Spark. One seat of each host runs the agent of `hvdtrain launch ssh` for the launcher.
"""
