"""Reads what runs have left in their folders, and what they write there now; trusts none of it."""
