"""The commands, a module each, which the command line imports when it is called."""
