"""The store on PostgreSQL: several machines, several writers at a time, one clock."""
