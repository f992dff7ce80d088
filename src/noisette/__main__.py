"""The command ``noisette``, also as ``python -m noisette``."""

import sys


def main() -> None:
    """Run the command, or say what it lacks."""
    try:
        from noisette.cli import main as command
    except ModuleNotFoundError as error:
        sys.exit(f"noisette: the command line needs {str(error.name).partition('.')[0]}: pip install 'noisette[cli]'")
    command()


if __name__ == "__main__":
    main()
