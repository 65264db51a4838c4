"""Where the events of a run go: each sink is one file, and `registry` lists them."""
