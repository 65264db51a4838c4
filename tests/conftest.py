"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines that run tests are loaded in bursts: a slow example is not a failure.
settings.register_profile("hvdtrain", deadline=None)
settings.load_profile("hvdtrain")
