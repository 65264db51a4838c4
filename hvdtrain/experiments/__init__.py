"""The classic experiments: more workers, slower links, a parameter server, stages; `hvdtrain bench` runs them."""
