"""What programs share: rows of results, ranks as processes, variants in turn, expected results."""
