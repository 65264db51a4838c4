"""Record loaders on a store with a latency and a bandwidth. Run `python -m benchmarks.remote --help`."""
