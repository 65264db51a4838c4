"""Write scikit-learn's wine data (178 records, 13 values, 3 classes) as TFRecord shards: python wine_records.py DIR"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

from data_sharding import write_shards
from data_sharding.example import encode

wine = load_wine()
x = ((wine.data - wine.data.mean(0)) / wine.data.std(0)).astype(np.float32)
order = np.random.default_rng(0).permutation(len(x))
records = [encode({"x": x[i], "y": int(wine.target[i])}) for i in order]

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
write_shards(folder, "validation", records[:36], num_shards=1)
write_shards(folder, "train", records[36:], num_shards=3)
