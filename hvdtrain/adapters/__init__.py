"""The frameworks behind one protocol. Only this package, `hvdtrain.comm` and tasks' models import them."""
