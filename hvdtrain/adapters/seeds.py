"""Random seeds that are functions of where training stands, so that nothing about them need be saved."""

from __future__ import annotations


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers (the finalizer of SplitMix64, Steele et al. 2014)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
