"""Three learning rates in one process; a notebook's cell would be the same: python sweep.py"""

import hvdtrain

if __name__ == "__main__":
    for lr in (0.001, 0.002, 0.004):
        result = hvdtrain.train(task="digits", lr=lr, epochs=6, output_dir=f"sweep/lr-{lr}", progress="none")
        print(lr, result["metrics"]["accuracy"], result["run_folder"])
