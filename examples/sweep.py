"""Two learning rates in one process; a notebook's cell would be the same: python sweep.py"""

import hvdtrain

if __name__ == "__main__":
    for lr in (0.004, 0.008):
        small = {"width": 8}
        result = hvdtrain.train(task_args=small, lr=lr, epochs=4, output_dir=f"sweep/lr-{lr}", progress="none")
        print(lr, result["metrics"]["accuracy"], result["run_folder"])
