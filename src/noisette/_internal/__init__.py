"""Used by every folder: argument checks, the keystream, atomic files, the allocator, the version."""
