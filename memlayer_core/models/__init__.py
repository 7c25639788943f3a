"""Other people's models behind memlayer's ports, and what runs without any."""
