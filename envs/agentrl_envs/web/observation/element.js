// What an element is, what it is called, where it is and who could press it. Runs in an isolated
// world of the page: the page's own scripts neither see nor change what is here.
"use strict";

// Kept where this script is loaded a second time.
const eye = (globalThis.eye ??= { ids: new WeakMap(), elements: new Map(), next: 1 });

const SKIPPED = new Set([
  "SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "TITLE", "BASE", "OBJECT",
  "EMBED", "AUDIO", "COLGROUP", "COL", "DATALIST", "OPTION", "OPTGROUP", "PARAM", "SOURCE",
  "TRACK", "WBR", "DEFS", "MARKER", "CLIPPATH", "SYMBOL", "DESC", "METADATA",
]);
const SHAPES = new Set([
  "circle", "rect", "ellipse", "polygon", "polyline", "line", "path", "text", "image", "use",
]);
const INPUT_ROLES = {
  checkbox: "checkbox", radio: "radio", range: "slider", number: "spinbutton", button: "button",
  submit: "button", reset: "button", image: "button", file: "file",
};
const ROLES = new Set([
  "button", "link", "checkbox", "radio", "tab", "menuitem", "menuitemcheckbox", "menuitemradio",
  "option", "switch", "combobox", "textbox", "searchbox", "slider", "spinbutton", "treeitem",
  "listbox",
]);
const CONTAINERS = { DIALOG: "dialog", TABLE: "table", IFRAME: "iframe", FIELDSET: "group" };
const CONTAINER_ROLES = new Set(["dialog", "alertdialog", "alert", "table", "grid", "tree"]);
const HEADING = /^H[1-6]$/;
const ITEMS = new Set(["tab", "menuitem", "option", "treeitem"]);
const EDGES = /\bui-resizable-(n|e|s|w|ne|sw|nw)\b/;
const DRAGGED = /\bui-(draggable|sortable-handle|resizable-handle)\b/;
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u115f\\u1160\\u17b4\\u17b5" +
    "\\u180b-\\u180e\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f" +
    "\\ufeff\\uffa0\\ufff0-\\ufffb\\u{e0000}-\\u{e0fff}]",
  "gu",
);
const COLOURS = new Map(Object.entries({
  "255,0,0": "red", "0,128,0": "green", "0,255,0": "lime", "0,0,255": "blue",
  "255,255,0": "yellow", "255,165,0": "orange", "128,0,128": "purple", "255,192,203": "pink",
  "0,0,0": "black", "255,255,255": "white", "128,128,128": "grey", "165,42,42": "brown",
  "0,255,255": "cyan", "255,0,255": "magenta", "128,128,0": "olive", "0,0,128": "navy",
  "0,128,128": "teal", "128,0,0": "maroon", "192,192,192": "silver", "238,130,238": "violet",
  "75,0,130": "indigo", "255,215,0": "gold", "210,180,140": "tan",
}));

function clean(text, most) {
  const plain = String(text ?? "").toWellFormed().replace(UNSEEN, "").replace(/\s+/g, " ").trim();
  return most && plain.length > most ? `${plain.slice(0, most).toWellFormed()}…` : plain;
}

// What was typed stays as it is: spaces and lines matter in a field.
function typed(text, most) {
  const plain = String(text ?? "").toWellFormed().replace(/\r\n?/g, "\n").replace(/\t/g, " ").replace(UNSEEN, "");
  return plain.length > most ? `${plain.slice(0, most).toWellFormed()}…` : plain;
}

function colour(css) {
  const found = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(css ?? "");
  if (!found || found[4] === "0") return "";
  const rgb = found.slice(1, 4).map(Number);
  const hex = rgb.map((part) => part.toString(16).padStart(2, "0")).join("");
  return COLOURS.get(rgb.join(",")) ?? `#${hex}`;
}

function idOf(element) {
  let id = eye.ids.get(element);
  if (id === undefined) {
    id = eye.next++;
    eye.ids.set(element, id);
  }
  eye.elements.set(id, element);
  return id;
}

function listening(page) {
  const found = new Set();
  const hear = (event) => found.add(event.composedPath()[0]);
  page.addEventListener("eye:listens", hear, true);
  page.dispatchEvent(new CustomEvent("eye:who-listens"));
  page.removeEventListener("eye:listens", hear, true);
  return found;
}

function offsetOf(element) {
  let x = 0;
  let y = 0;
  for (let view = element.ownerDocument.defaultView; view?.frameElement; ) {
    const frame = view.frameElement;
    const box = frame.getBoundingClientRect();
    x += box.left + frame.clientLeft;
    y += box.top + frame.clientTop;
    view = frame.ownerDocument.defaultView;
  }
  return { x, y };
}

function hits(element, x, y) {
  let found = element.ownerDocument.elementFromPoint(x, y);
  while (found?.shadowRoot) {
    const inner = found.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === found) break;
    found = inner;
  }
  if (!found) return false;
  for (let at = found; at; at = at.parentNode ?? at.host) if (at === element) return true;
  const label = found.closest?.("label");
  return Boolean(label && label.control === element);
}

const GRID = [0.5, 0.25, 0.75, 0.1, 0.9];
const EDGE_PX = 1;

function parts(length) {
  return length > 4 * EDGE_PX ? [...GRID, EDGE_PX / length, 1 - EDGE_PX / length] : GRID;
}

// The first point of an element's box at which a press would reach it; null where none does.
function pressable(element, box) {
  const view = element.ownerDocument.defaultView;
  for (const v of parts(box.height)) {
    for (const h of parts(box.width)) {
      const x = box.left + box.width * h;
      const y = box.top + box.height * v;
      if (x < 0 || y < 0 || x >= view.innerWidth || y >= view.innerHeight) continue;
      if (hits(element, x, y)) return { x, y };
    }
  }
  return null;
}

function roleOf(element) {
  const tag = element.tagName;
  const given = element.getAttribute("role");
  if (given && ROLES.has(given)) return given === "searchbox" ? "textbox" : given;
  if (tag === "A") return element.hasAttribute("href") ? "link" : "";
  if (tag === "BUTTON" || tag === "SUMMARY") return "button";
  if (tag === "TEXTAREA") return "textbox";
  if (tag === "SELECT") return element.multiple || element.size > 1 ? "listbox" : "combobox";
  if (tag === "INPUT") return element.type === "hidden" ? "" : INPUT_ROLES[element.type] ?? "textbox";
  if (element.isContentEditable && !element.parentElement?.isContentEditable) return "textbox";
  return "";
}

function labelOf(element) {
  const by = element.getAttribute("aria-labelledby");
  if (by) {
    const root = element.getRootNode();
    const text = by.split(/\s+/).map((id) => root.getElementById?.(id)?.textContent ?? "").join(" ");
    if (text.trim()) return text;
  }
  const label = element.getAttribute("aria-label");
  if (label?.trim()) return label;
  const labels = [...(element.labels ?? [])].map((one) => ownText(one)).join(" ");
  if (labels.trim()) return labels;
  if (element.tagName === "INPUT" && /^(submit|button|reset)$/.test(element.type)) {
    return element.value || element.type;
  }
  return (
    element.getAttribute("placeholder") || element.getAttribute("alt") ||
    element.getAttribute("title") || ""
  );
}

function ownText(label) {
  let text = "";
  for (const node of label.childNodes) {
    if (node.nodeType === 3) text += node.data;
    else if (node.nodeType === 1 && !/^(SELECT|TEXTAREA|SCRIPT|STYLE)$/.test(node.tagName)) {
      text += ` ${node.textContent}`;
    }
  }
  return text;
}

function stateOf(element, role, most) {
  const state = {};
  const tag = element.tagName;
  if (tag === "SELECT") {
    const options = [...element.options];
    const chosen = options.filter((one) => one.selected).map((one) => clean(one.label, most));
    if (chosen.length) state.value = chosen.join("|");
    state.options = options.slice(0, 100).map((one) => clean(one.label, most)).join("|");
    if (options.length > 100) state["more-options"] = String(options.length - 100);
  } else if (role === "checkbox" || role === "radio" || role === "switch") {
    if (element.checked || element.getAttribute("aria-checked") === "true") state.checked = "";
  } else if (tag === "INPUT" || tag === "TEXTAREA") {
    if (element.type !== "submit" && element.type !== "button" && element.type !== "reset") {
      const value = element.type === "password" ? "•".repeat(element.value.length) : element.value;
      if (value) state.value = typed(value, 4 * most);
      if (/^(password|date|time|color|email|month|week)$/.test(element.type)) {
        state.type = element.type;
      }
      if (role === "slider" || role === "spinbutton") {
        if (element.min) state.min = clean(element.min);
        if (element.max) state.max = clean(element.max);
      }
    }
  } else if (role === "textbox") {
    const value = clean(element.textContent, most);
    if (value) state.value = value;
  } else if (role === "slider" || role === "spinbutton") {
    const value = element.getAttribute("aria-valuenow");
    if (value) state.value = clean(value, most);
  }
  if (element.disabled || element.getAttribute("aria-disabled") === "true") state.disabled = "";
  if (tag === "TEXTAREA") state.multiline = "";
  if (element.readOnly && role === "textbox") state.readonly = "";
  for (const flag of ["selected", "pressed"]) {
    if (element.getAttribute(`aria-${flag}`) === "true") state[flag] = "";
  }
  const expanded = element.getAttribute("aria-expanded");
  if (expanded && role !== "tab") state.expanded = expanded === "true" ? "yes" : "no";
  return state;
}

function isControl(part) {
  return part[1] !== 0 && part[2] !== "generic" && part[2] !== "svg" && !part[4].at;
}

function activeIn(element) {
  const root = element.getRootNode();
  return root.activeElement === element;
}

function labelled(control) {
  const box = control.getBoundingClientRect();
  const style = getComputedStyle(control);
  return box.width > 1 && style.display !== "none" && style.visibility === "visible";
}

function elementOf(id) {
  const element = eye.elements.get(id);
  return element?.isConnected ? element : null;
}

function locate(id) {
  const element = elementOf(id);
  if (!element) return null;
  const view = element.ownerDocument.defaultView;
  let box = element.getBoundingClientRect();
  let point = pressable(element, box);
  if (!point) {
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    box = [...element.getClientRects()].sort((a, b) => b.width * b.height - a.width * a.height)[0] ??
      element.getBoundingClientRect();
    point = pressable(element, box);
  }
  const offset = offsetOf(element);
  const style = view.getComputedStyle(element);
  const at = point ?? { x: box.left + box.width / 2, y: box.top + box.height / 2 };
  const input = element.tagName === "LABEL" ? element.control ?? element : element;
  const role = roleOf(element);
  return {
    x: at.x + offset.x,
    y: at.y + offset.y,
    left: box.left + offset.x,
    top: box.top + offset.y,
    width: box.width,
    height: box.height,
    tag: element.tagName.toLowerCase(),
    role: role || "generic",
    type: input.type ?? "",
    editable: !input.disabled && !input.readOnly && (element.isContentEditable ||
      element.tagName === "TEXTAREA" ||
      (element.tagName === "INPUT" && !/^(checkbox|radio|button|submit|reset|image|file|hidden)$/.test(element.type))),
    options: element.tagName === "SELECT" ? [...element.options].map((one) => clean(one.label)) : null,
    disabled: Boolean(input.disabled) || element.getAttribute("aria-disabled") === "true",
    visible: style.visibility === "visible" && style.display !== "none" && box.width > 0 && box.height > 0,
    covered: point === null,
  };
}

function focus(id) {
  const element = elementOf(id);
  if (!element) return false;
  element.focus({ preventScroll: true });
  return activeIn(element);
}

// Ids begin at 1 again: for a page that serves a new episode without being loaded.
function forget() {
  eye.ids = new WeakMap();
  eye.elements = new Map();
  eye.next = 1;
  return true;
}

Object.assign(globalThis, { elementOf, locate, focus, forget });
