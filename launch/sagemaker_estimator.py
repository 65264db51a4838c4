"""Train on SageMaker: two machines with four GPUs each, data by pipes.

Edit it, then: python sagemaker_estimator.py --dry-run to see the request, and without the option to train.
"""

import json
import sys

from hvdtrain.launch.sagemaker import Estimator, Input, TrainingInput

estimator = Estimator(
    task="my_task:MyTask",
    source_dir="src",
    instance_count=2,
    instance_type="ml.p3.8xlarge",
    processes_per_host=4,
    input_mode="Pipe",
    hyperparameters={"epochs": 90, "global-batch-size": 1024},
    image="111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:latest",
    role="arn:aws:iam::111122223333:role/sagemaker-training",
    max_run_s=43200,
    checkpoint_s3_uri="s3://my-bucket/checkpoints/my-task",
    output_path="s3://my-bucket/jobs",
    base_job_name="my-task",
)
inputs: dict[str, Input] = {
    "train": TrainingInput("s3://my-bucket/data/train/", shuffle_seed=42),
    "validation": "s3://my-bucket/data/validation/",
}

if __name__ == "__main__":
    if "--dry-run" in sys.argv[1:]:
        print(json.dumps(estimator.request(inputs), indent=2))
    else:
        estimator.fit(inputs)
        print(estimator.model_data)
