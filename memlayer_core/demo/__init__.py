"""What `memlayer demo` plays: a story of our own, or a conversation from a file.

Frameworks and their adapters lie above this package and are loaded by name, when a part is played with them:
the demo runs with whichever is installed.
"""
