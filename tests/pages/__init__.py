"""Runs the commands of the documentation pages.

Every page follows these conventions, which ``test_pages.py`` checks:

- ``sh`` blocks are commands. The commands of a page are run in order by one ``bash -eu``, in a
  separate folder with copies of ``config/`` and ``deploy/``.
- A block whose first line is a comment with a file's name (``# routes.yaml``) is written to that
  file when the script reaches the block. A ``python`` block without a file's name is run.
- A ``text`` block is the output of the block before it: ``…`` in a line matches any text, and a
  line ``…`` matches any number of lines.
- A line that ends in ``&`` starts a server. The page has a command that waits for the server,
  because a reader has only the page's commands. All servers are stopped at the end of the page.
- A block after ``<!-- needs: docker -->`` is run only if INFERGATE_PAGES_MAY names that need, or
  if it is an installed program such as kubectl. Otherwise, the block's syntax and paths are
  checked. A block may have several needs (``test_pages.py`` lists them).
- Of ``make`` commands, only the existence of the target is checked.

Pages are run unchanged: each page has its own network namespace, in which all ports are free.
"""
