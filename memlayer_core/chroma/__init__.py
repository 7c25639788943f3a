"""The index in Chroma, in a directory of this process or on a server. No text is stored there, and nothing that the journal lacks."""
