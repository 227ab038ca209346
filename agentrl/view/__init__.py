"""Seeing a run: one page that opens from disk, the same page served, a frame for a terminal.

    run folder ──► source.py ──► story.py, index.py ──► document.py  one HTML file
                   (what to       (a group, a row of     serve.py  the same, by HTTP
                    show of it)    the table, as JSON)   standing.py, frame.py   a terminal
                       ▲
    redaction.py (what must not be seen), vocabulary.py (ids to text), branches.py (decisions)

`web/` holds the sources of the page, `page/viewer.html` what `make viewer` made of them.
"""
