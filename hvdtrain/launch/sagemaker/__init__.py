"""Training jobs on Amazon SageMaker, or simulated on this machine.

    from hvdtrain.launch.sagemaker import Estimator

    estimator = Estimator(task="digits", role="arn:aws:iam::111122223333:role/train", image="…", instance_count=2,
                          instance_type="ml.p4d.24xlarge", processes_per_host=8, output_path="s3://bucket/jobs")
    estimator.fit({"train": "s3://bucket/digits/train/", "validation": "s3://bucket/digits/validation/"})

boto3 is needed only to submit; rendering a request needs neither boto3 nor a network.
"""

from hvdtrain.launch.sagemaker.channel import Input, PipePlanInput, TrainingInput
from hvdtrain.launch.sagemaker.estimator import Estimator
from hvdtrain.launch.sagemaker.spec import TrainingSpec

__all__ = ["Estimator", "Input", "PipePlanInput", "TrainingInput", "TrainingSpec"]
