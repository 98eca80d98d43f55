"""The pages for people, whose commands are run.

*Convention*, which every page keeps (``test_pages.py``):

- ``sh`` blocks are commands. Those of a page are run in order, by one ``bash -eu``, in a folder of
  the page's own with copies of ``config/`` and ``deploy/``.
- A block whose first line is a comment with a file's name (``# routes.yaml``) is written to it when
  it is reached. A ``python`` block without one is run.
- A ``text`` block right after is what the commands (or the Python) before it print: ``…`` in a line
  is anything, a line ``…`` any number of lines.
- A line that ends in ``&`` starts a server: what follows waits until it listens. All are ended with
  the page.
- ``<!-- needs: docker -->`` before a block: it is run only where INFERGATE_PAGES_MAY names that, or
  a program such as kubectl is installed; otherwise its syntax and the paths that it names are
  checked. It may need more than one thing (``test_pages.py`` lists them).
- ``make`` tells only whether there is such a target.

*Why nothing is rewritten.* A page is run in a network namespace, where all ports are free and
no other page's: as it stands, by its own numbers.
"""
