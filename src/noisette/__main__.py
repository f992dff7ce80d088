"""``python -m noisette`` is the command ``noisette``."""

from noisette.cli import main

main()
