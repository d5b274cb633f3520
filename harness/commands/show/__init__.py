"""Show a user of a run in the terminal (`show`): prompts, replies and scores."""
