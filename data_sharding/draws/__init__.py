"""Which records an epoch draws, and how often, where that is not each of them once."""
