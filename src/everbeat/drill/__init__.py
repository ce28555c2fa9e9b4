"""The drill: real workers, real tasks, real SIGKILL, and an account of every run."""
