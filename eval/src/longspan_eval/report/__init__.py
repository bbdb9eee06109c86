"""From figures to what a reader sees: Markdown, charts, and a terminal."""
