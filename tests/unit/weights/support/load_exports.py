"""Answers of exported models, in a process that has only the runtime: load_exports.py torch|keras FOLDER …"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")


def answers_in_torch(folder: Path, inputs: Any) -> dict[str, Any]:
    import onnxruntime
    import torch

    answers = {}
    channels_first = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if inputs.ndim == 4 else inputs
    for file in folder.glob("*.torchscript.pt"):
        answers[file.name] = torch.jit.load(file)(torch.from_numpy(channels_first)).detach().numpy()
    for file in folder.glob("*.pt2"):
        answers[file.name] = torch.export.load(file).module()(torch.from_numpy(channels_first)).detach().numpy()
    for file in folder.glob("*.onnx"):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (only,) = session.get_inputs()
        given = inputs if file.name.startswith("keras") else channels_first
        (answers[file.name],) = session.run(None, {only.name: given})
    assert not {"hvdtrain", "tensorflow"} & set(sys.modules)
    return answers


def answers_in_keras(folder: Path, inputs: Any) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    answers = {}
    for file in folder.glob("*_savedmodel"):
        loaded = tf.saved_model.load(str(file))
        answers[file.name] = loaded.serve(tf.constant(inputs)).numpy()
    if inputs.ndim == 2:
        import hvdtrain.models.keras.zoo  # noqa: F401  registers its attention
    for file in folder.glob("*.keras"):
        answers[file.name] = keras.saving.load_model(file)(inputs, training=False).numpy()
    assert "torch" not in sys.modules
    return answers


for name in sys.argv[2:]:
    given = np.load(Path(name) / "inputs.npy")
    answers = (answers_in_torch if sys.argv[1] == "torch" else answers_in_keras)(Path(name), given)
    for exported, answer in answers.items():
        np.save(Path(name) / f"{exported}.answer.npy", answer)
