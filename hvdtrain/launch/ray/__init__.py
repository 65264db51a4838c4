"""Workers in a placement group of a Ray cluster. Only `broker` and what it sends to the nodes import ray."""
