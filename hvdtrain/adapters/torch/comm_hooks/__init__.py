"""Ways of a bucket of gradients to the other ranks and back: what travels, and in how many messages."""
