"""Verbs: the order in which things are asked of the ports. No decision and no driver is here."""
