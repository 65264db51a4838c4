"""What `hvdtrain plan` predicts, beside what the same steps take."""
