"""Seeing a run: one page that opens from disk, the same page served, a frame for a terminal.

    run folder ──► run_reader.py ──► group_page.py, index.py ──► document.py  one HTML file
                   (reads the        (a group, a row of          serve.py     the same, by HTTP
                    store)            the table, as JSON)     run_status.py, frame.py   a terminal
                       ▲
    redaction.py (secrets), token_texts.py (ids to text)

`page/` holds the page's modules and style, which need no build; `shell.py` joins them.
"""
