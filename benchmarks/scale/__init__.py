"""How costs grow with the number of workers, measured without so many machines."""
