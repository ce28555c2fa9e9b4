"""What happens inside one transaction, verb by verb: functions over a `Transaction`, with their SQL above them."""
