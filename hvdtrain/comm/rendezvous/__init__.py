"""The rendezvous of ranks whose launcher starts processes and does not connect them."""
