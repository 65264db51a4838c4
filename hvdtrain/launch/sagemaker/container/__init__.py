"""What runs inside a SageMaker container, whoever made its image."""
