"""The sum of a tensor over workers: ours beside other libraries."""
