"""The command line: a module a command, or a few that belong together."""
