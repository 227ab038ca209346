// Looks at a page from an isolated world: the page's own scripts neither see nor change what is
// here. Every function at the end is called by its name with one JSON value and returns another.
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
    eye.elements.set(id, new WeakRef(element));
  }
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

// The first point of an element's box at which a press would reach it; null where none does.
function pressable(element, box) {
  const view = element.ownerDocument.defaultView;
  for (const v of GRID) {
    for (const h of GRID) {
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
      if (value) state.value = clean(value, most);
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
  if (element.readOnly && role === "textbox") state.readonly = "";
  for (const flag of ["selected", "pressed"]) {
    if (element.getAttribute(`aria-${flag}`) === "true") state[flag] = "";
  }
  const expanded = element.getAttribute("aria-expanded");
  if (expanded) state.expanded = expanded === "true" ? "yes" : "no";
  return state;
}

class Look {
  constructor(wants) {
    this.wants = wants;
    this.nodes = [];
    this.boxes = {};
    this.visited = 0;
    this.left = 0;
    this.stop = false;
    this.words = "";
    this.wordsDepth = 0;
    this.until = performance.now() + wants.deadlineMs;
  }

  full() {
    if (!this.stop && (this.nodes.length >= this.wants.maxNodes ||
        (this.visited % 128 === 0 && performance.now() > this.until))) {
      this.stop = true;
    }
    return this.stop;
  }

  say(text, depth) {
    this.words += text;
    this.wordsDepth = depth;
  }

  flush() {
    const text = clean(this.words, this.wants.maxText);
    this.words = "";
    if (text) this.nodes.push([this.wordsDepth, 0, "text", text, {}]);
  }

  page(root, document) {
    const sets = { listeners: listening(document), document };
    const view = document.defaultView;
    const clip = { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9, view };
    this.children(root, { depth: 0, clip, cursor: "", within: false, ...sets });
    this.flush();
  }

  children(node, at) {
    const list = node.shadowRoot ? node.shadowRoot.childNodes
      : node.tagName === "SLOT" && node.assignedNodes().length ? node.assignedNodes()
      : node.childNodes;
    for (const child of list) {
      if (this.full()) return;
      if (child.nodeType === 3) {
        if (at.seen !== false) this.say(child.data, at.depth);
      } else if (child.nodeType === 1) this.element(child, at);
    }
  }

  element(element, at) {
    this.visited++;
    const tag = element.tagName;
    if (SKIPPED.has(tag.toUpperCase())) return;
    if (tag === "BR") return this.flush();
    if (element.getAttribute("aria-hidden") === "true") return;
    const style = at.clip.view.getComputedStyle(element);
    if (style.display === "none" || style.contentVisibility === "hidden") return;
    const role = roleOf(element);
    const faint = style.opacity === "0" && role !== "checkbox" && role !== "radio" && role !== "file";
    if (faint) return;
    const box = element.getBoundingClientRect();
    const seen = this.seen(element, style, box, at.clip);
    const block = !/^(inline|contents)$/.test(style.display);
    if (block) this.flush();
    const inner = { ...at, seen, cursor: style.cursor, clip: this.clip(element, style, box, at.clip) };
    if (element instanceof SVGElement && tag !== "foreignObject") this.svg(element, box, inner, at);
    else if (seen) this.shown(element, role, style, box, inner, at);
    else this.children(element, inner);
    if (block) this.flush();
  }

  seen(element, style, box, clip) {
    if (style.visibility !== "visible") return false;
    if (style.display === "contents") return true;
    if (box.width <= 1 && box.height <= 1 && style.overflow !== "visible") return false;
    if (/^(BODY|HTML)$/.test(element.tagName)) return true;
    const view = clip.view;
    if (box.right + view.scrollX < 0 || box.bottom + view.scrollY < 0) return false;
    if (box.width === 0 && box.height === 0) return element.childNodes.length > 0;
    return box.right > clip.left && box.left < clip.right && box.bottom > clip.top && box.top < clip.bottom;
  }

  clip(element, style, box, clip) {
    const hides = (overflow) => overflow === "hidden" || overflow === "clip";
    if (/^(BODY|HTML)$/.test(element.tagName)) return clip;
    const across = hides(style.overflowX);
    const along = hides(style.overflowY);
    if (!across && !along && style.overflowX === "visible") return clip;
    if (style.overflowX === "auto" || style.overflowX === "scroll" ||
        style.overflowY === "auto" || style.overflowY === "scroll") {
      return { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9, view: clip.view, scrolls: true };
    }
    return {
      ...clip,
      left: across ? Math.max(clip.left, box.left) : clip.left,
      right: across ? Math.min(clip.right, box.right) : clip.right,
      top: along ? Math.max(clip.top, box.top) : clip.top,
      bottom: along ? Math.min(clip.bottom, box.bottom) : clip.bottom,
    };
  }

  covered(element, box, at) {
    const view = at.clip.view;
    const inside = box.left < view.innerWidth && box.right > 0 && box.top < view.innerHeight && box.bottom > 0;
    if (!inside || at.clip.scrolls) return false;
    if (hits(element, box.left + box.width / 2, box.top + box.height / 2)) return false;
    const found = [...element.getClientRects()].some((one) => pressable(element, one));
    return !found;
  }

  clickable(element, style, at) {
    if (at.listeners.has(element) || element.hasAttribute("onclick")) return true;
    if (style.cursor === "pointer" && at.cursor !== "pointer") return true;
    if (element.draggable && element.tagName !== "IMG") return true;
    const className = typeof element.className === "string" ? element.className : "";
    return DRAGGED.test(className) || (element.tabIndex >= 0 && element.hasAttribute("tabindex"));
  }

  shown(element, role, style, box, inner, at) {
    const tag = element.tagName;
    if (role) return this.control(element, role, box, inner, at);
    if (tag === "LABEL" && element.control && this.standsIn(element)) {
      return this.control(element, INPUT_ROLES[element.control.type], box, inner, at);
    }
    if (tag === "LABEL" && element.control && labelled(element.control)) {
      return this.children(element, { ...inner, seen: false });
    }
    if (tag === "CANVAS" || tag === "VIDEO") {
      return this.push(element, tag.toLowerCase(), clean(labelOf(element)), box, inner, { boxed: true });
    }
    if (tag === "IMG") return this.image(element, style, box, inner, at);
    if (tag === "IFRAME") return this.frame(element, box, inner);
    const page = /^(BODY|HTML)$/.test(tag);
    if (!page && this.clickable(element, style, at)) return this.generic(element, style, box, inner, at);
    if (at.within && !element.firstElementChild) return this.generic(element, style, box, inner, at);
    if (HEADING.test(tag)) return this.titled(element, "heading", inner);
    if (tag === "TR") return this.row(element, inner);
    const container = CONTAINERS[tag] ??
      (CONTAINER_ROLES.has(element.getAttribute("role")) ? element.getAttribute("role") : null);
    if (container) return this.container(element, container, inner);
    return this.children(element, inner);
  }

  // A box drawn instead of a check box that cannot be seen: its label is what one clicks.
  standsIn(label) {
    if (!/^(checkbox|radio)$/.test(label.control.type)) return false;
    const box = label.control.getBoundingClientRect();
    const style = getComputedStyle(label.control);
    return style.display === "none" || style.visibility !== "visible" || box.width <= 1;
  }

  push(element, role, name, box, at, { boxed = false, state = {} } = {}) {
    this.flush();
    const id = idOf(element);
    const attributes = { ...state };
    const offset = this.wants.boxes || boxed || this.wants.marks ? offsetOf(element) : null;
    if (this.wants.boxes || boxed) {
      attributes.at = `${Math.round(box.left + box.width / 2 + offset.x)},${Math.round(box.top + box.height / 2 + offset.y)}`;
      attributes.size = `${Math.round(box.width)}x${Math.round(box.height)}`;
    }
    if (this.wants.marks) {
      this.boxes[id] = [box.left + offset.x, box.top + offset.y, box.width, box.height];
    }
    if (activeIn(element)) attributes.focused = "";
    this.nodes.push([at.depth, id, role, name, attributes]);
    return id;
  }

  control(element, role, box, inner, at) {
    const input = element.tagName === "LABEL" ? element.control : element;
    const holds = /^(SELECT|TEXTAREA|INPUT)$/.test(element.tagName);
    if (this.covered(element, box, at)) return;
    if (box.width === 0 && box.height === 0) return holds ? undefined : this.children(element, inner);
    idOf(element);
    const most = this.wants.maxText;
    const parts = holds || role === "textbox" ? [] : this.inside(element, inner);
    const named = parts.filter((part) => part[1] === 0).map((part) => part[3]).join(" ");
    const name = clean(labelOf(element) || named, most);
    const state = stateOf(input, role, most);
    this.push(element, role, name, box, inner, { state });
    if (role !== "textbox") this.nest(parts.filter((part) => part[1] !== 0));
  }

  // What is inside, as nodes of its own, one deeper.
  inside(element, at) {
    this.flush();
    const outer = this.nodes;
    this.nodes = [];
    this.children(element, { ...at, depth: at.depth + 1 });
    this.flush();
    const found = this.nodes;
    this.nodes = outer;
    return found;
  }

  nest(parts) {
    for (const part of parts) this.nodes.push(part);
  }

  image(element, style, box, inner, at) {
    const name = clean(element.alt || element.title, this.wants.maxText);
    if (this.clickable(element, style, at)) return this.push(element, "img", name, box, inner);
    if (!name) return;
    this.flush();
    this.nodes.push([inner.depth, 0, "img", name, {}]);
  }

  frame(element, box, inner) {
    let document = null;
    try {
      document = element.contentDocument;
    } catch {
      document = null;
    }
    this.flush();
    this.nodes.push([inner.depth, 0, "iframe", clean(element.title || element.name, 80), {}]);
    if (document?.body) {
      const outer = new Look({ ...this.wants, maxNodes: this.wants.maxNodes - this.nodes.length,
        deadlineMs: this.until - performance.now() });
      outer.page(document.body, document);
      this.nest(outer.nodes.map(([depth, ...rest]) => [depth + inner.depth + 1, ...rest]));
      Object.assign(this.boxes, outer.boxes);
      this.visited += outer.visited;
      this.stop ||= outer.stop;
    }
  }

  generic(element, style, box, inner, at) {
    const leaf = !element.firstElementChild;
    if (leaf && !element.textContent.trim() && (box.width < 2 || box.height < 2)) return;
    if (box.width === 0 || box.height === 0) return this.children(element, inner);
    if (!at.clip.scrolls && leaf && this.covered(element, box, at)) return;
    idOf(element);
    const mine = at.listeners.has(element) && !ownWords(element);
    const parts = leaf ? [] : this.inside(element, { ...inner, within: mine && delegates(element) });
    const acted = parts.filter((part) => part[1] !== 0);
    const plain = parts.filter((part) => part[1] === 0);
    const most = this.wants.maxText;
    let name = clean(labelOf(element), most);
    if (!name) name = clean(leaf ? element.textContent : acted.length ? "" : plain.map((part) => part[3]).join(" "), most);
    const state = stateOf(element, "", most);
    const bare = !name && !acted.length;
    const fill = colour(style.backgroundColor);
    if ((bare || DRAGGED.test(element.className)) && fill) state.fill = fill;
    if (bare) {
      const kind = clean(typeof element.className === "string" ? element.className : "") || clean(element.id);
      if (kind) state.class = kind;
    }
    const role = HEADING.test(element.tagName) ? "heading" : "generic";
    this.push(element, role, name, box, inner, { state, boxed: bare || DRAGGED.test(element.className) });
    if (acted.length) this.nest(parts);
  }

  titled(element, role, inner) {
    const parts = this.inside(element, inner);
    const words = parts.filter((part) => part[1] === 0).map((part) => part[3]).join(" ");
    if (words) this.nodes.push([inner.depth, 0, role, clean(words, this.wants.maxText), {}]);
    this.nest(parts.filter((part) => part[1] !== 0));
  }

  row(element, inner) {
    const cells = [...element.children].map((cell) => {
      const list = [];
      const outer = this.nodes;
      this.nodes = list;
      this.element(cell, { ...inner, depth: inner.depth + 1 });
      this.flush();
      this.nodes = outer;
      return list;
    });
    this.flush();
    const parts = cells.flat();
    if (!parts.length) return;
    if (parts.some((part) => part[1] !== 0)) {
      this.nodes.push([inner.depth, 0, "row", "", {}]);
      return this.nest(parts);
    }
    const words = cells.map((cell) => cell.map((part) => part[3]).join(" ")).join(" | ");
    this.nodes.push([inner.depth, 0, "row", words, {}]);
  }

  container(element, role, inner) {
    const parts = this.inside(element, inner);
    if (!parts.length) return;
    const name = clean(element.getAttribute("aria-label") ?? "", this.wants.maxText);
    this.nodes.push([inner.depth, 0, role, name, {}]);
    this.nest(parts);
  }

  svg(element, box, inner, at) {
    const kind = element.tagName.toLowerCase();
    if (kind === "title") return;
    if (kind === "svg") {
      if (box.width === 0) return;
      idOf(element);
      const parts = this.inside(element, inner);
      const title = clean(element.querySelector("title")?.textContent ?? labelOf(element), this.wants.maxText);
      this.push(element, "svg", title, box, inner, { boxed: true });
      return this.nest(parts);
    }
    if (!SHAPES.has(kind)) return this.children(element, inner);
    const style = at.clip.view.getComputedStyle(element);
    if (style.visibility !== "visible" || (box.width === 0 && box.height === 0)) return;
    const state = {};
    const fill = colour(style.fill);
    const stroke = colour(style.stroke);
    if (fill) state.fill = fill;
    if (stroke && stroke !== fill) state.stroke = stroke;
    if (kind === "polygon" || kind === "polyline") {
      state.corners = String(element.points?.numberOfItems ?? 0);
    }
    if (kind === "line") {
      const offset = offsetOf(element);
      const matrix = element.getScreenCTM();
      const end = (x, y) => {
        const point = new DOMPoint(x.baseVal.value, y.baseVal.value).matrixTransform(matrix);
        return `${Math.round(point.x + offset.x)},${Math.round(point.y + offset.y)}`;
      };
      state.from = end(element.x1, element.y1);
      state.to = end(element.x2, element.y2);
    }
    const name = kind === "text" ? clean(element.textContent, this.wants.maxText) : "";
    const role = kind === "text" ? "label" : kind === "image" ? "img" : kind;
    this.push(element, role, name, box, inner, { boxed: true, state });
  }
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

function ownWords(element) {
  return [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
}

function delegates(element) {
  let leaves = 0;
  const walk = document.createTreeWalker(element, NodeFilter.SHOW_ELEMENT);
  while (walk.nextNode()) if (!walk.currentNode.firstElementChild && ++leaves > 1) return true;
  return false;
}

function observe(wants) {
  const look = new Look(wants);
  if (document.body) look.page(document.body, document);
  const all = look.stop ? document.getElementsByTagName("*").length : 0;
  const extra = look.nodes.length - wants.maxNodes;
  return {
    url: location.href,
    title: clean(document.title, wants.maxText),
    nodes: extra > 0 ? look.nodes.slice(0, wants.maxNodes) : look.nodes,
    boxes: look.boxes,
    left: Math.max(0, extra) + Math.max(0, all - look.visited),
    size: [innerWidth, innerHeight],
  };
}

function elementOf(id) {
  const element = eye.elements.get(id)?.deref();
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

Object.assign(globalThis, { observe, locate, focus, forget });
