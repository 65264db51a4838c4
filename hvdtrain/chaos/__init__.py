"""Disturbs a training on purpose, on a seeded schedule, and says what that has cost."""
