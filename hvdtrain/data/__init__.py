"""From records to this rank's batches."""
