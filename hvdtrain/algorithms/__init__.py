"""Arithmetic of training without a framework: update rules, schedules, averages, loss scaling, compression."""
