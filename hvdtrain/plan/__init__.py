"""`hvdtrain plan`: measures a model and its links, and predicts what each way to divide training would take."""
