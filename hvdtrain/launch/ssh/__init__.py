"""`hvdtrain launch ssh`: workers on other hosts, each host with an agent at the other end of an ssh connection."""
