"""The database, its jobs and its texts: the kernel that knows no noun."""
