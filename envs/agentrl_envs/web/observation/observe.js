// One look at a page as lines: who is there, in reading order. Loaded after element.js.

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
    this.children(root, { depth: 0, clip, cursor: "", ...sets });
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
    if (!name && !state.value) this.classed(element, state);
    this.push(element, role, name, box, inner, { state });
    if (role === "textbox") return;
    this.nest(parts.filter((part) => isControl(part) && !(ITEMS.has(role) && part[3] === name)));
  }

  classed(element, state) {
    const given = typeof element.className === "string" ? element.className : "";
    const kind = clean(given, 80) || clean(element.id, 80);
    if (kind) state.class = kind;
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
    const parts = leaf ? [] : this.inside(element, inner);
    const acted = parts.filter((part) => part[1] !== 0);
    const plain = parts.filter((part) => part[1] === 0);
    const most = this.wants.maxText;
    let name = clean(labelOf(element), most);
    if (!name) name = clean(leaf ? element.textContent : acted.length ? "" : plain.map((part) => part[3]).join(" "), most);
    const state = stateOf(element, "", most);
    const given = element.getAttribute("role");
    if (acted.some(isControl) && !CONTAINER_ROLES.has(given)) {
      return this.nest(parts.map(([depth, ...rest]) => [depth - 1, ...rest]));
    }
    const bare = !name && !acted.length;
    const dragged = DRAGGED.test(element.className);
    if (bare && (Math.min(box.width, box.height) < 3 || EDGES.test(element.className))) return;
    const fill = colour(style.backgroundColor);
    if ((bare || dragged) && fill && !acted.length) state.fill = fill;
    if (bare) this.classed(element, state);
    const role = HEADING.test(element.tagName) ? "heading" : CONTAINER_ROLES.has(given) ? given : "generic";
    this.push(element, role, name, box, inner, { state, boxed: bare || dragged });
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
    if (style.visibility !== "visible" || (box.width < 5 && box.height < 5)) return;
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

function observe(wants) {
  for (const [id, element] of eye.elements) if (!element.isConnected) eye.elements.delete(id);
  const look = new Look(wants);
  if (document.body) look.page(document.body, document);
  const all = look.stop ? 1 + document.body.getElementsByTagName("*").length : 0;
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

globalThis.observe = observe;
