"""Plain tables on the terminal."""

from collections.abc import Sequence


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """Print rows under column heads; with `numbers`, all columns but the first to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a value such as n[1-3] is no markup
    Console().print(table)
