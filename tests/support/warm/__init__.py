"""Interpreters that have imported a framework and run programs in forks: importing one takes seconds."""
