"""The rank of this process and the size of its job, read from the variables that launchers set.

    topology = detect_topology(os.environ)      # before hvd.init()
    topology.disagreement(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())      # after it

`explain(os.environ)` tells what was seen, what decided and what was ignored, and why. Standard library only.
"""

from hvdtrain.topology.detect import Evidence, detect_topology, explain
from hvdtrain.topology.topology import Topology

__all__ = ["Evidence", "Topology", "detect_topology", "explain"]
