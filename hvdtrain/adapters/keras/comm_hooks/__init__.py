"""Ways of a bucket of gradients to the other ranks and back, traced into the step: what travels, in which messages."""
