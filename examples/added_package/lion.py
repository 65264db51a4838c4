"""An optimizer: a rule that both frameworks run (Chen et al. 2023, arXiv:2302.06675)."""

from hvdtrain.algorithms.update_rules import Optimizer


def lion(operations, settings, weight, gradient, slots, corrections):
    """What is subtracted from the weight, times the learning rate; and the slots after this update."""
    average = slots["exp_avg"]
    seen = settings.beta1 * average + (1 - settings.beta1) * gradient
    kept = settings.beta2 * average + (1 - settings.beta2) * gradient
    return operations.sign(seen) + settings.weight_decay * weight, {"exp_avg": kept}


LION = Optimizer(lion, ("exp_avg",), {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0})
