"""The tasks that come with hvdtrain, by name, and loading a user's own."""
