"""The command line: `memlayer demo`, and commands that read and maintain a store."""
