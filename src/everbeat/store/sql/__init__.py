"""`Store` on any database that speaks SQL: each verb one transaction, then the bells."""
