"""Kept for tools that look for it; all metadata is in pyproject.toml."""

from setuptools import setup

setup()
