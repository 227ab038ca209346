"""A web site of our own for the desktop's browser, as a file says, and the browser itself.

The site is served inside the desktop's own network namespace. What the user sent to it is in
`state.json` beside the file that describes it: every submission in order, with all its fields.
"""

import html
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_envs.gui.inside import form

COMMAND = (*form.INTERPRETER, form.code_of("site"))
PORT = 8000
STATE = "state.json"
POLICY = "/run/desktop/etc/chromium/policies/managed/desktop.json"
_BODY_BYTES = 2**20
_STYLE = (
    "body{font:15px 'DejaVu Sans',sans-serif;margin:24px;max-width:44em;color:#222}"
    "nav a{margin-right:1em}table{border-collapse:collapse}td,th{border:1px solid #bbb;"
    "padding:4px 10px;text-align:left}label{display:block;margin:8px 0}"
    "input,select,button{font:inherit;margin-left:6px}"
)
POLICIES: Mapping[str, Any] = {
    # Pages are all there is: no files of the desktop, no scripts of the user, no settings.
    "URLBlocklist": ["file://*", "javascript://*", "data:*", "view-source:*", "chrome://*"],
    "URLAllowlist": ["chrome://bookmarks", "chrome://newtab", "chrome://new-tab-page"],
    "DeveloperToolsAvailability": 2,
    "AllowFileSelectionDialogs": False,
    "DownloadDirectory": "/home/user/Downloads",
    "PromptForDownloadLocation": False,
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BookmarkBarEnabled": False,
    "BrowserSignin": 0,
    "DefaultBrowserSettingEnabled": False,
    "NetworkPredictionOptions": 2,
    "PasswordManagerEnabled": False,
    "PrintingEnabled": False,
    "PromotionsEnabled": False,
    "SearchSuggestEnabled": False,
    "SpellcheckEnabled": False,
    "TranslateEnabled": False,
}
"""Policies of the browser while it shows a site of ours."""


class BrowserSite:
    """Pages, files to download, and what was submitted."""

    def __init__(self, spec: Mapping[str, Any], folder: str) -> None:
        self.spec = spec
        self._folder = folder
        self._sent: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def page(self, path: str) -> str | None:
        """Return a page, or None where there is none."""
        page = self.spec["pages"].get(path)
        if page is None:
            return None
        links = "".join(_link(label, to) for label, to in self.spec["nav"])
        body = "".join(_BLOCKS[block["kind"]](block) for block in page["blocks"])
        title = html.escape(page["title"])
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>'
            f"<nav>{links}</nav><h1>{title}</h1>{body}</body></html>"
        )

    def file(self, path: str) -> bytes | None:
        """Return a file, or None where there is none."""
        text = self.spec["files"].get(path)
        return None if text is None else text.encode()

    def submit(self, path: str, fields: Mapping[str, str]) -> bool:
        """Keep what a form sent; whether there is such a form."""
        if path not in self.spec["forms"]:
            return False
        with self._lock:
            self._sent.append({"form": path, "fields": dict(fields)})
            temp_path = os.path.join(self._folder, f"{STATE}.new")
            with open(temp_path, "w", encoding="utf-8") as file:
                json.dump(self._sent, file, ensure_ascii=False)
            os.replace(temp_path, os.path.join(self._folder, STATE))
        return True


def _link(label: str, to: str) -> str:
    return f'<a href="{html.escape(to)}">{html.escape(label)}</a> '


def _text(block: Mapping[str, Any]) -> str:
    return f"<p>{html.escape(block['text'])}</p>"


def _links(block: Mapping[str, Any]) -> str:
    return f"<ul>{''.join(f'<li>{_link(*one)}</li>' for one in block['links'])}</ul>"


def _table(block: Mapping[str, Any]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(one)}</{tag}>' for one in cells)}</tr>"

    rows = "".join(row("td", cells) for cells in block["rows"])
    return f"<table>{row('th', block['head'])}{rows}</table>"


def _form(block: Mapping[str, Any]) -> str:
    fields = "".join(_field(field) for field in block["fields"])
    button = html.escape(block["button"])
    action = html.escape(block["action"])
    return (
        f'<form method="post" action="{action}" autocomplete="off">{fields}'
        f"<button>{button}</button></form>"
    )


def _field(field: Mapping[str, Any]) -> str:
    name, value = html.escape(field["name"]), html.escape(field.get("value", ""))
    if field["kind"] == "choice":
        options = "".join(f"<option>{html.escape(one)}</option>" for one in field["options"])
        control = f'<select name="{name}"><option value=""></option>{options}</select>'
    elif field["kind"] == "check":
        control = f'<input type="checkbox" name="{name}" value="on">'
    else:
        control = f'<input name="{name}" value="{value}" size="30">'
    return f"<label>{name} {control}</label>"


_BLOCKS = {"text": _text, "links": _links, "table": _table, "form": _form}


def handler(site: BrowserSite) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the handler of the requests for a site."""

    class SiteHandler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urllib.parse.urlsplit(self.path).path
            if (data := site.file(path)) is not None:
                self._answer(200, data, "application/octet-stream", download=True)
            elif (page := site.page(path)) is not None:
                self._answer(200, page.encode(), "text/html; charset=utf-8")
            else:
                self._answer(404, b"There is no such page.", "text/plain; charset=utf-8")

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 <= size <= _BODY_BYTES:
                self._answer(413, b"Too long.", "text/plain; charset=utf-8")
                self.close_connection = True
                return
            body = self.rfile.read(size).decode("utf-8", "replace")
            fields = dict(urllib.parse.parse_qsl(body, keep_blank_values=True))
            if not site.submit(self.path, fields):
                self._answer(404, b"There is no such form.", "text/plain; charset=utf-8")
                return
            self.send_response(303)
            self.send_header("Location", site.spec["forms"][self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer(self, status: int, data: bytes, kind: str, *, download: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            if download:
                self.send_header("Content-Disposition", "attachment")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    return SiteHandler


def main() -> None:
    """Serve the site that a file describes, and run a browser on it until that ends."""
    path, *browser = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        site = BrowserSite(json.load(file), os.path.dirname(path))
    os.makedirs(os.path.dirname(POLICY), exist_ok=True)
    with open(POLICY, "w", encoding="utf-8") as file:
        json.dump(POLICIES, file)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler(site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process = subprocess.Popen(browser)

    def interrupt(*of: object) -> None:
        # Interrupted it writes down its bookmarks; asked to terminate it only ends.
        process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    ended = process.wait()
    if ended < 0:
        # A browser that crashed is a program that crashed.
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
