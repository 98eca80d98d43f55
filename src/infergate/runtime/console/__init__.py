"""The console: a page on the admin port, and the JSON that it and the terminal commands read.

*Strategy.* It tells what metrics count anyway and what ``observe.recent`` keeps: requests pay for
nothing else, and nobody for anything while nobody looks. What it needs is loaded when it is first
asked for. See docs/console.md and docs/decisions/0032-console.md.
"""
