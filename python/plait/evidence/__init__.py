"""What predictions are held to: the papers' experiments and recorded measurements."""
