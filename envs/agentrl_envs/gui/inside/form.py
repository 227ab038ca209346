"""A program of our own for the desktop: a form, a panel of buttons or a list, as a file says.

What the user did is in a file beside it, and nothing of it anywhere else:

- a form writes all its values when it is saved;
- a panel writes the buttons that were pressed, in order;
- a list writes its rows after every change.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

INTERPRETER = ("/usr/bin/python3", "-I", "-B", "-c")


def code_of(module: str) -> str:
    """Return the code with which the interpreter runs a module of these."""
    return (
        "import sys; sys.path.insert(0, '/opt/desktop/agent.zip'); "
        f"from agentrl_envs.gui.inside.{module} import main; main()"
    )


COMMAND = (*INTERPRETER, code_of("form"))
STATE = "state.json"
_GAP_PX = 8


def load_gtk() -> Any:
    """Return the toolkit, which opens the display where one is named."""
    gi: Any = importlib.import_module("gi")
    gi.require_version("Gtk", "3.0")
    return importlib.import_module("gi.repository.Gtk")


class FormProgram:
    """One window."""

    def __init__(self, spec: Mapping[str, Any], folder: str) -> None:
        self._gtk = load_gtk()
        self._spec = spec
        self._folder = folder
        self._read: dict[str, Callable[[], Any]] = {}
        self._window = self._gtk.Window(title=spec["title"])
        self._window.set_border_width(_GAP_PX)
        self._window.connect("destroy", self._gtk.main_quit)
        {"form": self._form, "panel": self._panel, "list": self._list}[spec["kind"]]()
        self._window.show_all()

    def run(self) -> None:
        """Serve the user until the window is closed."""
        self._gtk.main()

    def _save(self, state: Any) -> None:
        path = os.path.join(self._folder, STATE)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(state, file, ensure_ascii=False)
        os.replace(f"{path}.new", path)

    def _column(self) -> Any:
        return self._gtk.Box(orientation=self._gtk.Orientation.VERTICAL, spacing=_GAP_PX)

    def _button(self, label: str, pressed: Callable[[], Any]) -> Any:
        button = self._gtk.Button(label=label)

        def on_click(widget: Any) -> None:
            pressed()

        button.connect("clicked", on_click)
        return button

    # -- a form -----------------------------------------------------------------------------------

    def _form(self) -> None:
        whole = self._column()
        pages = self._spec["pages"]
        if len(pages) == 1:
            whole.pack_start(self._page(pages[0]["fields"]), True, True, 0)
        else:
            book = self._gtk.Notebook()
            for page in pages:
                book.append_page(self._page(page["fields"]), self._gtk.Label(label=page["label"]))
            whole.pack_start(book, True, True, 0)
        self._said = self._gtk.Label(label="Not saved yet")
        buttons = self._gtk.Box(spacing=_GAP_PX)
        for label, pressed in (("Save", self._save_confirmed), ("Close", self._window.destroy)):
            buttons.pack_end(self._button(label, pressed), False, False, 0)
        buttons.pack_start(self._said, False, False, 0)
        whole.pack_start(buttons, False, False, 0)
        self._window.add(whole)

    def _page(self, fields: list[dict[str, Any]]) -> Any:
        grid = self._gtk.Grid(column_spacing=_GAP_PX, row_spacing=_GAP_PX)
        grid.set_border_width(_GAP_PX)
        for row, field in enumerate(fields):
            label = self._gtk.Label(label=field["label"], xalign=0.0)
            widget, read = getattr(self, f"_{field['kind']}")(field)
            widget.get_accessible().set_name(field["label"])
            self._read[field["label"]] = read
            if field["kind"] != "check":
                grid.attach(label, 0, row, 1, 1)
            grid.attach(widget, 1, row, 1, 1)
        return grid

    def _text(self, field: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
        entry = self._gtk.Entry(text=field["value"], width_chars=28)
        return entry, entry.get_text

    def _number(self, field: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
        spin = self._gtk.SpinButton.new_with_range(field["low"], field["high"], 1)
        spin.set_width_chars(16)
        spin.set_value(field["value"])
        return spin, spin.get_value_as_int

    def _check(self, field: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
        box = self._gtk.CheckButton(label=field["label"], active=field["value"])
        return box, box.get_active

    def _choice(self, field: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
        box = self._gtk.ComboBoxText()
        for option in field["options"]:
            box.append_text(option)
        box.set_active(field["options"].index(field["value"]))
        return box, box.get_active_text

    def _radio(self, field: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
        row, first = self._gtk.Box(spacing=_GAP_PX), None
        buttons: dict[str, Any] = {}
        for option in field["options"]:
            first = buttons[option] = self._gtk.RadioButton.new_with_label_from_widget(
                first, option
            )
            row.pack_start(first, False, False, 0)
        buttons[field["value"]].set_active(True)
        return row, lambda: next(name for name, b in buttons.items() if b.get_active())

    def _save_confirmed(self) -> None:
        if question := self._spec.get("confirm", ""):
            types = self._gtk
            dialog = types.MessageDialog(
                transient_for=self._window,
                modal=True,
                message_type=types.MessageType.QUESTION,
                buttons=types.ButtonsType.YES_NO,
                text=question,
            )
            answer = dialog.run()
            dialog.destroy()
            if answer != types.ResponseType.YES:
                return
        self._save({label: read() for label, read in self._read.items()})
        self._said.set_text("Saved")

    # -- a panel of buttons -----------------------------------------------------------------------

    def _panel(self) -> None:
        grid = self._gtk.Grid(column_spacing=_GAP_PX, row_spacing=_GAP_PX)
        pressed: list[str] = []

        def press(button: Any) -> None:
            pressed.append(button.get_label())
            self._save(pressed)

        for at, label in enumerate(self._spec["buttons"]):
            button = self._gtk.Button(label=label)
            button.connect("clicked", press)
            grid.attach(button, at % self._spec["columns"], at // self._spec["columns"], 1, 1)
        self._window.add(grid)

    # -- a list of rows ---------------------------------------------------------------------------

    def _list(self) -> None:
        whole = self._column()
        rows = self._gtk.ListBox()
        names: list[str] = list(self._spec["rows"])

        def fill() -> None:
            for child in rows.get_children():
                rows.remove(child)
            for name in names:
                row = self._gtk.ListBoxRow()
                row.add(self._gtk.Label(label=name, xalign=0.0))
                row.get_accessible().set_name(name)
                rows.add(row)
            rows.show_all()

        def change(what: Callable[[int], None]) -> None:
            row = rows.get_selected_row()
            if row is not None:
                what(row.get_index())
                self._save(names)
                fill()

        def delete(at: int) -> None:
            del names[at]

        def move_up(at: int) -> None:
            names.insert(max(0, at - 1), names.pop(at))

        def add() -> None:
            if text := entry.get_text().strip():
                names.append(text)
                entry.set_text("")
                self._save(names)
                fill()

        fill()
        scrolled = self._gtk.ScrolledWindow(min_content_height=220, min_content_width=320)
        scrolled.add(rows)
        whole.pack_start(scrolled, True, True, 0)
        entry = self._gtk.Entry(width_chars=24)
        entry.get_accessible().set_name("New row")
        bar = self._gtk.Box(spacing=_GAP_PX)
        bar.pack_start(entry, True, True, 0)
        for label, pressed in (
            ("Add", add),
            ("Delete", lambda: change(delete)),
            ("Move up", lambda: change(move_up)),
        ):
            bar.pack_start(self._button(label, pressed), False, False, 0)
        whole.pack_start(bar, False, False, 0)
        self._window.add(whole)


def main() -> None:
    """Run the program that a file describes; its state lies in the same folder."""
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        FormProgram(json.load(file), os.path.dirname(path)).run()
