"""Small foundations that every folder may use: argument checks, the keystream, whole files, memory."""
