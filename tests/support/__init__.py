"""What the tests of all folders share.

Tests import it as `support` (pyproject.toml puts tests/ on the path), programs that they start find it the same way.
`scripts/` has programs that tests of one room run in a process of their own.
"""
