"""The read side: what people and machines are told."""
