"""``python -m papers``: reproduce the figures and tables of a paper."""

import typer

from papers.command import reproduce

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command()(reproduce)

if __name__ == "__main__":
    app(prog_name="python -m papers")
