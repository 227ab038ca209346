"""The durable record of a run: every completed turn, on disk before anything acts on it.

    store/
      lock                 held by the one process that writes
      segments/*.segment   the log: everything that happened, append-only
      objects/ab/abcd...   images and tool schemas, named by their SHA-256
      ledger.sqlite        what the log adds up to, and where each record lies

The log is the truth and the ledger follows it: a record is appended first and entered second, so
a ledger that is behind (a killed process) catches up from the log when the store is opened.

    record.py segment.py blobs.py      bytes on disk, and what is torn or damaged
    codec.py                           what a record says; its events are events/kinds.py
    lineage.py                         which groups a checkpoint has trained: a pure rule
    index.py                           the database
    disk_sync.py lock.py               when bytes reach the disk; who may write
    writer.py                          keeps events, and gives back the state of a run: START HERE
    reader.py                          the same for anyone else
    run.py                             the store in a run
"""
