"""A model as a chain of links, cut into stages that train as a pipeline, in one process or on several ranks."""
