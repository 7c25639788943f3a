"""Facts that a language model reads in messages: in the background, in few calls, and nothing that no message says."""
