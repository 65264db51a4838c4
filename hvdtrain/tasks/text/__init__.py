"""Language modelling on any text files, byte by byte: so that the framework is not only for pictures."""
