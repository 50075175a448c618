"""The bodies of the subcommands of `python -m bench`, one file a program."""
