"""Other people's models behind memlayer's seams, and what runs without any."""
