"""Pure decisions: facts, policy and now in, a value out. No I/O, no clock, no randomness, no logging."""
