"""Background work: one thread that leases jobs and does them."""
