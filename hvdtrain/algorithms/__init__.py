"""Arithmetic of training that knows no framework: update rules, schedules, averages, loss scaling, compression."""
