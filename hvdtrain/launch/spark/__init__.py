"""Workers in a barrier stage of a Spark cluster. Only `broker` and what runs in the tasks import pyspark."""
