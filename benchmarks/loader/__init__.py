"""Record loaders on one core: data_sharding against its peers. Run `python -m benchmarks.loader --help`."""
