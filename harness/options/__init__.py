"""What a command's words mean: options, models, providers, endpoints and keys."""
