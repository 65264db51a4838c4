"""One protocol for both frameworks. Only this package, `hvdtrain.comm` and tasks' models import them."""
