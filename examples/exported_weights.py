"""Use what a run has trained, without hvdtrain: python exported_weights.py model.pt

hvdtrain export RUN --format state-dict --output model.pt
"""

import sys

import torch


def network():  # as in wine_torch.py
    return torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))


if __name__ == "__main__":
    model = network()
    model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
    model.eval()
    print(model(torch.zeros(1, 13)).softmax(1).tolist())
