"""Measure a trained model on two sets of records, and write its predictions: python evaluate_and_predict.py RUN

For a classification, whose task says which feature is the label (`label_feature`) and predicts a probability.
"""

import sys

import numpy as np

import hvdtrain

run = sys.argv[1]
found = hvdtrain.evaluate(run, sets={"train": "train-*.tfrecord", "validation": "validation-*.tfrecord"})
for name, measured in found.items():
    print(f"{name}: {measured['records']} records, accuracy {measured['measures']['accuracy']:.3f}")
    for number, values in enumerate(measured["classes"]):  # as the task says which feature is the label
        print(f"  class {number}: precision {values['precision']:.3f}, recall {values['recall']:.3f}")

hvdtrain.predict(run, "predictions.npz", pattern="validation-*.tfrecord", force=True)
with np.load("predictions.npz") as columns:
    rows = zip(columns["id"], columns["file"], columns["offset"], columns["probability"], strict=True)
    number, file, offset, probability = min(rows, key=lambda row: row[3].max())
print(f"least sure of record {number}, at byte {offset} of {file}: {probability.round(2)}")
